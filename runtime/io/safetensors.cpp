#include "runtime/io/safetensors.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/io/safetensors_header.hpp"

namespace ordo::io {
namespace {

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit

struct CloseFile {
  void operator()(std::FILE* file) const { (void)std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

Error io_error(const std::string& path, const std::string& what) { return {ErrorCode::io, fmt::format("{}: {}", path, what)}; }

std::string system_reason(int code) { return std::error_code(code, std::generic_category()).message(); }

Result<void> read_exactly(std::FILE* file, const std::string& path, void* out, std::size_t bytes) {
  errno = 0;
  if (bytes == 0 || std::fread(out, 1, bytes, file) == bytes) return {};
  return io_error(path,
                  errno != 0 ? fmt::format("cannot read: {}", system_reason(errno)) : "cannot read: the file became shorter");
}

Result<std::uint64_t> regular_file_size(const std::string& path) {
  std::error_code reason;
  const auto status = std::filesystem::status(path, reason);
  if (status.type() == std::filesystem::file_type::not_found) return io_error(path, "no such file");
  if (reason) return io_error(path, fmt::format("cannot open: {}", reason.message()));
  if (!std::filesystem::is_regular_file(status)) return io_error(path, "is not a regular file");
  const std::uintmax_t size = std::filesystem::file_size(path, reason);
  if (reason) return io_error(path, fmt::format("cannot open: {}", reason.message()));
  return static_cast<std::uint64_t>(size);
}

Result<std::string> read_header_text(std::FILE* file, const std::string& path, std::uint64_t file_bytes) {
  if (file_bytes < kLengthBytes) {
    return io_error(path, fmt::format("is {} bytes long: too short for a safetensors file", file_bytes));
  }
  unsigned char prefix[kLengthBytes];
  if (auto read = read_exactly(file, path, prefix, sizeof prefix); !read) return read.error();
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | prefix[i];
  if (length > kMaxHeaderBytes) {
    return io_error(path, fmt::format("states a header of {} bytes; at most {} are allowed: is this a safetensors file?", length,
                                      kMaxHeaderBytes));
  }
  if (length > file_bytes - kLengthBytes) {
    return io_error(
        path,
        fmt::format("states a header of {} bytes, but holds only {} after the length: it is truncated or not a safetensors file",
                    length, file_bytes - kLengthBytes));
  }
  std::string text(static_cast<std::size_t>(length), '\0');
  if (auto read = read_exactly(file, path, text.data(), text.size()); !read) return read.error();
  return text;
}

Result<SafeTensors> read_unguarded(const std::string& path) {
  auto file_bytes = regular_file_size(path);
  if (!file_bytes) return file_bytes.error();
  const File file(std::fopen(path.c_str(), "rb"));
  if (!file) return io_error(path, fmt::format("cannot open: {}", system_reason(errno)));
  auto text = read_header_text(file.get(), path, *file_bytes);
  if (!text) return text.error();
  auto header = parse_header(*text);
  if (!header) return io_error(path, header.error().message);
  // Checked against the bytes that are there before anything of their size is allocated.
  if (auto layout = check_layout(*header, *file_bytes - kLengthBytes - text->size()); !layout) {
    return io_error(path, layout.error().message);
  }
  SafeTensors content;
  content.metadata = std::move(header->metadata);
  for (HeaderTensor& stated : header->tensors) {
    Tensor tensor{std::move(stated.dtype), std::move(stated.shape), std::vector<std::byte>(stated.end - stated.begin)};
    if (auto read = read_exactly(file.get(), path, tensor.data.data(), tensor.data.size()); !read) return read.error();
    content.tensors.emplace(std::move(stated.name), std::move(tensor));
  }
  return content;
}

// The header text, and the order in which the data follows: wide types first, so that every tensor is aligned.
Result<std::string> make_header(const SafeTensors& content, std::vector<const Tensor*>& order) {
  std::vector<std::pair<const std::string*, const Tensor*>> sorted;
  sorted.reserve(content.tensors.size());
  for (const auto& [name, tensor] : content.tensors) sorted.emplace_back(&name, &tensor);
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return std::pair(-dtype_bytes(a.second->dtype), std::string_view(*a.first)) <
           std::pair(-dtype_bytes(b.second->dtype), std::string_view(*b.first));
  });
  Header layout;
  auto json = nlohmann::ordered_json::object();
  if (!content.metadata.empty()) json["__metadata__"] = content.metadata;
  std::uint64_t offset = 0;
  for (const auto& [name, tensor] : sorted) {
    if (*name == "__metadata__") return Error{ErrorCode::invalid_argument, "a tensor cannot be named __metadata__"};
    for (const std::int64_t size : tensor->shape) {
      if (size < 0)
        return Error{ErrorCode::invalid_argument, fmt::format("tensor {} has the negative size {}", printable(*name), size)};
    }
    const std::uint64_t end = offset + tensor->data.size();
    json[*name] = {{"dtype", tensor->dtype}, {"shape", tensor->shape}, {"data_offsets", {offset, end}}};
    layout.tensors.push_back({*name, tensor->dtype, tensor->shape, offset, end});
    order.push_back(tensor);
    offset = end;
  }
  if (auto consistent = check_layout(layout, offset); !consistent)
    return Error{ErrorCode::invalid_argument, consistent.error().message};
  std::string text = json.dump();
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');
  return text;
}

Result<void> write_bytes(std::FILE* file, const std::string& path, const void* data, std::size_t bytes) {
  if (bytes == 0 || std::fwrite(data, 1, bytes, file) == bytes) return {};
  return io_error(path, fmt::format("cannot write: {}", system_reason(errno)));
}

Result<void> write_content(File file, const std::string& path, const std::string& header,
                           const std::vector<const Tensor*>& order) {
  unsigned char prefix[kLengthBytes];
  for (std::size_t i = 0; i < kLengthBytes; ++i) prefix[i] = static_cast<unsigned char>(std::uint64_t{header.size()} >> (8 * i));
  if (auto written = write_bytes(file.get(), path, prefix, sizeof prefix); !written) return written;
  if (auto written = write_bytes(file.get(), path, header.data(), header.size()); !written) return written;
  for (const Tensor* tensor : order) {
    if (auto written = write_bytes(file.get(), path, tensor->data.data(), tensor->data.size()); !written) return written;
  }
  // fclose reports what the buffered writes could not (a full disk).
  if (std::fclose(file.release()) != 0) return io_error(path, fmt::format("cannot write: {}", system_reason(errno)));
  return {};
}

Result<void> write_unguarded(const std::string& path, const SafeTensors& content) {
  std::vector<const Tensor*> order;
  auto header = make_header(content, order);
  if (!header) return Error{header.error().code, fmt::format("{}: {}", path, header.error().message)};
  std::error_code reason;
  const auto status = std::filesystem::status(path, reason);
  // A rename would replace a device or a pipe by a file.
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
    return io_error(path, "exists and is not a regular file");
  const std::string target = std::filesystem::weakly_canonical(path, reason).string();  // through a symbolic link, not over it
  if (reason || target.empty())
    return io_error(path, fmt::format("cannot write: {}", reason ? reason.message() : "the path is empty"));
  static std::atomic<unsigned> counter{0};
  const std::string temporary = fmt::format("{}.{}.{}.tmp", target, ::getpid(), counter.fetch_add(1));
  const int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0) return io_error(path, fmt::format("cannot write: {}", system_reason(errno)));
  File file(::fdopen(descriptor, "wb"));
  if (!file) {
    (void)::close(descriptor);
    (void)::unlink(temporary.c_str());
    return io_error(path, "cannot write: out of memory");
  }
  auto written = write_content(std::move(file), path, *header, order);
  if (written && std::rename(temporary.c_str(), target.c_str()) != 0)
    written = io_error(path, fmt::format("cannot write: {}", system_reason(errno)));
  if (!written) (void)::unlink(temporary.c_str());
  return written;
}

// The JSON library, the file system library and allocation report by exception: none may leave this file.
template <class Action>
auto guarded(const std::string& path, Action action) -> decltype(action()) {
  try {
    return action();
  } catch (const std::bad_alloc&) {
    return io_error(path, "not enough memory for its tensors");
  } catch (const std::exception& failure) {
    return io_error(path, failure.what());
  }
}

}  // namespace

Result<SafeTensors> read_safetensors(const std::string& path) {
  return guarded(path, [&] { return read_unguarded(path); });
}

Result<void> write_safetensors(const std::string& path, const SafeTensors& content) {
  return guarded(path, [&] { return write_unguarded(path, content); });
}

}  // namespace ordo::io
