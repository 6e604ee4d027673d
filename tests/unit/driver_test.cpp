#include "runtime/driver.hpp"

#include <doctest/doctest.h>

#include <set>
#include <string>

#include "runtime/device.hpp"
#include "runtime/kernel_set.hpp"

namespace ordo {
namespace {

int marker = 0;  // stands for a function's address

/// Text functions as the driver has them.
CUresult fake_error_name(CUresult result, const char** text) {
  *text = result == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : nullptr;
  return *text == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult fake_error_string(CUresult, const char** text) {
  *text = "out of memory";
  return CUDA_SUCCESS;
}

DeviceFacts facts(const char* name, int sm_count, int cc_major = 9, int cc_minor = 0) {
  DeviceFacts f;
  f.name = name;
  f.sm_count = sm_count;
  f.cc_major = cc_major;
  f.cc_minor = cc_minor;
  f.shared_bytes_per_block = 232448;
  return f;
}

}  // namespace

TEST_CASE("driver: the table asks for every function once, by base name, in one API version") {
  std::set<std::string> names;
  const Result<Driver> table = resolve_driver([&](const char* name, int version) -> void* {
    CHECK(version == 12000);
    CHECK_MESSAGE(names.insert(name).second, name);
    CHECK_MESSAGE(std::string(name).find("_v") == std::string::npos, name);
    return &marker;
  });
  REQUIRE(table);
  CHECK(names.size() == sizeof(Driver) / sizeof(void*));
  CHECK(names.count("cuLaunchKernelEx") == 1);
  CHECK(reinterpret_cast<void*>(table->memAlloc) == &marker);
}

TEST_CASE("driver: a missing function is named") {
  const Result<Driver> table =
      resolve_driver([](const char* name, int) -> void* { return std::string(name) == "cuLibraryLoadData" ? nullptr : &marker; });
  REQUIRE_FALSE(table);
  CHECK(table.error().code == ErrorCode::no_device);
  CHECK(table.error().message.find("cuLibraryLoadData") != std::string::npos);
  CHECK(table.error().message.find("too old") != std::string::npos);
}

TEST_CASE("driver: an error names the call, the result and its text") {
  Driver table;
  table.getErrorName = fake_error_name;
  table.getErrorString = fake_error_string;
  CHECK(table.check(CUDA_SUCCESS, "cuMemAlloc"));
  Result<void> failed = table.check(CUDA_ERROR_OUT_OF_MEMORY, "cuMemAlloc of 5 bytes");
  REQUIRE_FALSE(failed);
  CHECK(failed.error().code == ErrorCode::driver);
  CHECK(failed.error().message == "cuMemAlloc of 5 bytes failed: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory.");
  failed = table.check(CUDA_ERROR_NO_DEVICE, "cuInit");
  REQUIRE_FALSE(failed);
  CHECK(failed.error().code == ErrorCode::no_device);
  CHECK(failed.error().message.find("unknown CUresult (100)") != std::string::npos);
}

TEST_CASE("device: without a driver every entry says so") {
  if (driver()) {
    MESSAGE("skipped: this machine has a driver");
    return;
  }
  const KernelSet kernels({KernelImage{"main", "k", "sm_90a", 64, 0, 1, {}}});
  CHECK(kernels.images().size() == 1);
  for (const Error& error : {driver().error(), device_count().error(), device_facts(0).error(), current_device().error(),
                             target_of_device(0).error(), DeviceContext::open(0).error(), Stream::create().error(),
                             Event::create().error(), DeviceBuffer::allocate(16).error(), kernels.load(nullptr).error()}) {
    CHECK(error.code == ErrorCode::no_device);
    CHECK_FALSE(error.message.empty());
  }
  CHECK(DeviceBuffer::allocate(0));
}

TEST_CASE("device: the target of a device is the named one only where it fits") {
  for (const auto& [name, sm_count, wanted] : {std::tuple{"NVIDIA H200", 132, "h200"},
                                               {"NVIDIA H100 80GB HBM3", 132, "h100"},
                                               {"NVIDIA H800", 132, "h800"},
                                               {"NVIDIA H20", 78, "h20"},
                                               {"NVIDIA H20-3e", 78, "h20"},
                                               {"NVIDIA H100 PCIe", 114, "sm_90a:114"},
                                               {"NVIDIA H200 MIG 1g.18gb", 16, "sm_90a:16"},
                                               {"NVIDIA GH200 480GB", 132, "sm_90a:132"}}) {
    CAPTURE(name);
    const Result<Target> target = target_of_facts(facts(name, sm_count));
    REQUIRE_MESSAGE(target, target.error().message);
    CHECK(to_text(*target) == wanted);
    CHECK(target->sm_count == sm_count);
  }
}

TEST_CASE("device: another architecture is unsupported, by name") {
  for (const auto& [major, minor] : {std::pair{8, 0}, {10, 0}, {9, 1}}) {
    const Result<Target> target = target_of_facts(facts("NVIDIA Other", 108, major, minor));
    REQUIRE_FALSE(target);
    CHECK(target.error().code == ErrorCode::unsupported);
    CHECK(target.error().message.find("NVIDIA Other") != std::string::npos);
  }
}

}  // namespace ordo
