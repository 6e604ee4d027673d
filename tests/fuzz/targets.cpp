#include "tests/fuzz/targets.hpp"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "ordo/shape_list.hpp"
#include "runtime/cubin.hpp"
#include "runtime/io/safetensors_header.hpp"

namespace ordo::test {
namespace {

/// A property that does not hold ends the program, which is what a fuzzer looks for.
void require(bool property) {
  if (!property) std::abort();
}

std::string_view text_of(std::span<const std::byte> bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

}  // namespace

void fuzz_cubin(std::span<const std::byte> bytes) {
  const Result<CubinInfo> info = read_cubin(bytes);
  if (!info) {
    require(info.error().code == ErrorCode::bad_cubin && !info.error().message.empty());
    return;
  }
  require(info->sm > 0 && !info->kernels.empty());
  for (const CubinKernel& kernel : info->kernels) require(!kernel.symbol.empty() && kernel.symbol.size() <= bytes.size());
}

void fuzz_shape_list(std::span<const std::byte> bytes) {
  if (bytes.size() > 4096) return;  // a few kB of lists multiply to a million problems: slow, and nothing new
  const Result<ShapeList> list = parse_shape_list(text_of(bytes), "fuzz.toml");
  if (!list) {
    require(list.error().message.starts_with("fuzz.toml"));
    return;
  }
  for (const ListedProblem& listed : list->problems) require(listed.problem.validate().ok());
  for (const Plan& plan : list->plans) require(plan.validate().ok());
  if (list->problems.size() > 1000) return;
  const Result<ShapeList> again = parse_shape_list(to_toml(*list), "again.toml");
  require(again.ok() && again->problems == list->problems && again->plans == list->plans);
}

void fuzz_safetensors(std::span<const std::byte> bytes) {
  // The header alone, as its reader gets it: the first eight bytes stand for the size of the data behind it.
  if (bytes.size() < 8) return;
  std::uint64_t data_bytes = 0;
  std::memcpy(&data_bytes, bytes.data(), sizeof data_bytes);
  Result<io::Header> header = io::parse_header(text_of(bytes.subspan(8)));
  if (!header) {
    require(!header.error().message.empty());
    return;
  }
  if (!io::check_layout(*header, data_bytes)) return;
  std::uint64_t end = 0;
  for (const io::HeaderTensor& tensor : header->tensors) {
    require(tensor.begin == end && tensor.end >= tensor.begin && tensor.end <= data_bytes);
    end = tensor.end;
  }
  require(end == data_bytes);
}

}  // namespace ordo::test
