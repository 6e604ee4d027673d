#include "runtime/measure/cublas.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include "runtime/device.hpp"

namespace ordo::measure {
namespace {

// From cublas_api.h and library_types.h, which are not needed to build.
using Handle = void*;
constexpr int kNoTranspose = 0, kTranspose = 1;
constexpr int kFp32 = 0, kFp16 = 2, kBf16 = 14;
constexpr int kCompute32F = 68;
constexpr int kDefaultAlgorithm = -1;
constexpr std::size_t kWorkspaceBytes = std::size_t{64} << 20;

}  // namespace

struct Cublas::Library {
  Library() = default;
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() {
    if (handle != nullptr) destroy(handle);
  }
  Handle handle = nullptr;
  DeviceBuffer workspace;
  CUstream_st* stream = nullptr;  ///< that the handle is set to
  int (*create)(Handle*) = nullptr;
  int (*destroy)(Handle) = nullptr;
  int (*set_stream)(Handle, CUstream_st*) = nullptr;
  int (*set_workspace)(Handle, void*, std::size_t) = nullptr;
  int (*get_version)(Handle, int*) = nullptr;
  int (*gemm)(Handle, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int, const void*, void*, int,
              int, int, int) = nullptr;
};

Result<Cublas> Cublas::open(const std::string& path) {
  void* library = nullptr;
  if (path.empty()) {
    for (const char* name : {"libcublas.so.13", "libcublas.so.12", "libcublas.so"})
      if (library == nullptr) library = dlopen(name, RTLD_NOW);
  } else {
    const std::string folder = path.substr(0, path.find_last_of('/') + 1);
    const std::string version = path.substr(std::min(path.find(".so"), path.size()));
    dlopen((folder + "libcublasLt" + version).c_str(), RTLD_NOW | RTLD_GLOBAL);  // where the loader would not look for it
    library = dlopen(path.c_str(), RTLD_NOW);
  }
  if (library == nullptr) return Error{ErrorCode::toolchain, fmt::format("cuBLAS cannot be opened: {}", dlerror())};
  auto opened = std::make_shared<Library>();
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    return function != nullptr;
  };
  if (!find(opened->create, "cublasCreate_v2") || !find(opened->destroy, "cublasDestroy_v2") ||
      !find(opened->set_stream, "cublasSetStream_v2") || !find(opened->set_workspace, "cublasSetWorkspace_v2") ||
      !find(opened->get_version, "cublasGetVersion_v2") || !find(opened->gemm, "cublasGemmEx"))
    return Error{ErrorCode::toolchain, "cuBLAS lacks a function; use version 12 or 13"};
  auto workspace = DeviceBuffer::allocate(kWorkspaceBytes);
  if (!workspace) return workspace.error();
  opened->workspace = *std::move(workspace);
  if (const int status = opened->create(&opened->handle); status != 0)
    return Error{ErrorCode::toolchain, fmt::format("cublasCreate failed with {}", status)};
  return Cublas(std::move(opened));
}

int Cublas::version() const {
  int version = 0;
  library_->get_version(library_->handle, &version);
  return version;
}

Result<void> Cublas::multiply(const OverlapGemm& p, const OverlapGemmTensors& t, CUstream_st* stream) const {
  const float one = 1, zero = 0;
  const int type = p.dtype == DType::bf16 ? kBf16 : kFp16, out = p.out == OutputType::fp32 ? kFp32 : type;
  if (stream != library_->stream) {  // once: it would count as cuBLAS' time otherwise
    library_->set_stream(library_->handle, stream);
    library_->set_workspace(library_->handle, library_->workspace.data(), library_->workspace.bytes());
    library_->stream = stream;
  }
  // Column-major: D^T = B^T A^T.
  const int status = library_->gemm(library_->handle, p.b == Storage::column ? kTranspose : kNoTranspose,
                                    p.a == Storage::row ? kNoTranspose : kTranspose, static_cast<int>(p.n), static_cast<int>(p.m),
                                    static_cast<int>(p.k), &one, t.b.data, type, static_cast<int>(t.b.stride), t.a.data, type,
                                    static_cast<int>(t.a.stride), &zero, t.d.data, out, static_cast<int>(t.d.stride), kCompute32F,
                                    kDefaultAlgorithm);
  if (status != 0) return Error{ErrorCode::driver, fmt::format("cublasGemmEx failed with {}", status)};
  return {};
}

}  // namespace ordo::measure
