#include "cli/layer_file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include "runtime/io/safetensors.hpp"

namespace ordo::cli {
namespace {

using io::Tensor;

std::string shape_text(const std::vector<std::int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

// One file's tensors, looked up and checked.
class Reader {
 public:
  Reader(const std::string& path, const io::SafeTensors& file) : path_(path), file_(file) {}

  [[nodiscard]] Error wrong(const std::string& what) const {
    return {ErrorCode::invalid_problem, fmt::format("{}: {}", path_, what)};
  }

  [[nodiscard]] const Tensor* find(const std::string& name) const {
    const auto found = file_.tensors.find(name);
    return found == file_.tensors.end() ? nullptr : &found->second;
  }

  // A tensor that must be there, with four dimensions.
  Result<const Tensor*> operand(const std::string& name) const {
    const Tensor* tensor = find(name);
    if (tensor == nullptr) {
      std::string names;
      for (const auto& [found, unused] : file_.tensors) names += names.size() < 200 ? (names.empty() ? "" : ", ") + found : "";
      return wrong(fmt::format("has no tensor '{}'; it needs q, k, v and do, and may have o and lse. Found: {}", name,
                               names.empty() ? "none" : names));
    }
    if (tensor->shape.size() != 4) {
      return wrong(fmt::format("tensor '{}' has the shape {}; it needs four dimensions, [batch, seqlen, heads, head_dim]", name,
                               shape_text(tensor->shape)));
    }
    return tensor;
  }

  Result<void> check(const std::string& name, const Tensor& tensor, const std::string& dtype,
                     const std::vector<std::int64_t>& shape, const char* why) const {
    if (tensor.dtype != dtype) return wrong(fmt::format("tensor '{}' is {}; it must be {}{}", name, tensor.dtype, dtype, why));
    if (tensor.shape != shape)
      return wrong(
          fmt::format("tensor '{}' has the shape {}; it must be {}{}", name, shape_text(tensor.shape), shape_text(shape), why));
    return {};
  }

 private:
  const std::string& path_;
  const io::SafeTensors& file_;
};

template <class T>
std::vector<T> elements(const Tensor& tensor) {
  std::vector<T> out(tensor.data.size() / sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), tensor.data.data(), out.size() * sizeof(T));
  return out;
}

template <class T>
Tensor tensor_of(const char* dtype, std::vector<std::int64_t> shape, const std::vector<T>& values) {
  const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
  return {dtype, std::move(shape), std::vector<std::byte>(bytes, bytes + values.size() * sizeof(T))};
}

Result<AttentionBackward> problem_of(const Reader& reader, const Tensor& q, const Tensor& k, Mask mask) {
  if (q.dtype != "BF16" && q.dtype != "F16")
    return reader.wrong(fmt::format("tensor 'q' is {}; ordo computes in BF16 or F16", q.dtype));
  AttentionBackward problem;
  problem.batch = q.shape[0], problem.seqlen_q = q.shape[1], problem.heads = q.shape[2], problem.head_dim = q.shape[3];
  problem.seqlen_k = k.shape[1], problem.kv_heads = k.shape[2];
  problem.mask = mask;
  problem.dtype = q.dtype == "BF16" ? DType::bf16 : DType::fp16;
  if (auto valid = problem.validate(); !valid) return Error{valid.error().code, reader.wrong(valid.error().message).message};
  return problem;
}

}  // namespace

Result<Layer> read_layer(const std::string& path, Mask mask) {
  auto file = io::read_safetensors(path);
  if (!file) return file.error();
  const Reader reader(path, *file);
  const Tensor* operands[4] = {};
  for (const auto& [slot, name] : {std::pair{0, "q"}, {1, "k"}, {2, "v"}, {3, "do"}}) {
    auto tensor = reader.operand(name);
    if (!tensor) return tensor.error();
    operands[slot] = *tensor;
  }
  const auto& [q, k, v, d_o] = operands;
  auto problem = problem_of(reader, *q, *k, mask);
  if (!problem) return problem.error();
  const AttentionBackward& p = *problem;
  const std::vector<std::int64_t> keys = {p.batch, p.seqlen_k, p.kv_heads, p.head_dim}, rows = {p.batch, p.heads, p.seqlen_q};
  for (const auto& [name, tensor, shape, why] :
       {std::tuple{"k", k, keys, " (batch and head_dim of q)"}, {"v", v, keys, ", as k"}, {"do", d_o, q->shape, ", as q"}}) {
    if (auto right = reader.check(name, *tensor, q->dtype, shape, why); !right) return right.error();
  }
  Layer layer{p,
              {elements<std::uint16_t>(*q),
               elements<std::uint16_t>(*k),
               elements<std::uint16_t>(*v),
               {},
               elements<std::uint16_t>(*d_o),
               {}}};
  if (const Tensor* o = reader.find("o")) {
    if (auto right = reader.check("o", *o, q->dtype, q->shape, ", as q"); !right) return right.error();
    layer.inputs.o = elements<std::uint16_t>(*o);
  }
  if (const Tensor* lse = reader.find("lse")) {
    if (auto right = reader.check("lse", *lse, "F32", rows, ", [batch, heads, seqlen_q]"); !right) return right.error();
    layer.inputs.lse = elements<float>(*lse);
  }
  return layer;
}

Result<void> write_gradients(const std::string& path, const AttentionBackward& problem, const reference::HostGradients& gradients,
                             const std::map<std::string, std::string>& metadata) {
  const char* dtype = problem.dtype == DType::bf16 ? "BF16" : "F16";
  const std::vector<std::int64_t> keys = {problem.batch, problem.seqlen_k, problem.kv_heads, problem.head_dim};
  io::SafeTensors content;
  content.metadata = metadata;
  content.tensors["dq"] = tensor_of(dtype, {problem.batch, problem.seqlen_q, problem.heads, problem.head_dim}, gradients.dq);
  content.tensors["dk"] = tensor_of(dtype, keys, gradients.dk);
  content.tensors["dv"] = tensor_of(dtype, keys, gradients.dv);
  return io::write_safetensors(path, content);
}

Result<void> check_output(const std::string& path, const std::string& input) {
  namespace fs = std::filesystem;
  std::error_code reason;
  const auto refused = [&](const std::string& why) {
    return Error{ErrorCode::io, fmt::format("{}: cannot write: {}", path, why)};
  };
  if (path.empty()) return refused("the path is empty");
  if (fs::exists(path, reason) && fs::equivalent(path, input, reason)) {
    return Error{ErrorCode::invalid_argument, fmt::format("{}: the output would replace the input", path)};
  }
  if (const auto status = fs::status(path, reason); fs::exists(status) && !fs::is_regular_file(status))
    return refused("it exists and is not a regular file");
  const fs::path folder = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : fs::path(".");
  if (!fs::is_directory(folder, reason)) return refused(fmt::format("there is no folder {}", folder.string()));
  if (::access(folder.c_str(), W_OK) != 0) return refused(std::error_code(errno, std::generic_category()).message());
  return {};
}

}  // namespace ordo::cli
