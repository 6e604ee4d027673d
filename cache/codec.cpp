#include "cache/codec.hpp"

#include <zstd.h>

#include <memory>
#include <utility>

namespace ordo::cache {
namespace {

// A cubin shrinks to about a third; a higher level gains little and takes longer than the store's own write.
constexpr int level = 9;

struct FreeContext {
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

/// One a thread, 160 kB: to make it takes as long as to decompress a small cubin. nullptr where there is no memory.
ZSTD_DCtx* decompressor() {
  thread_local std::unique_ptr<ZSTD_DCtx, FreeContext> context;
  if (!context) context.reset(ZSTD_createDCtx());
  return context.get();
}

}  // namespace

Encoded encode(std::span<const std::byte> bytes) {
  std::vector<std::byte> packed(ZSTD_compressBound(bytes.size()));
  const std::size_t size = ZSTD_compress(packed.data(), packed.size(), bytes.data(), bytes.size(), level);
  if (ZSTD_isError(size) != 0 || size >= bytes.size()) return {Codec::plain, {bytes.begin(), bytes.end()}};
  packed.resize(size);
  return {Codec::zstd, std::move(packed)};
}

std::optional<std::vector<std::byte>> decode(std::int64_t codec, std::vector<std::byte> data) {
  if (codec == static_cast<std::int64_t>(Codec::plain)) return data;
  if (codec != static_cast<std::int64_t>(Codec::zstd)) return std::nullopt;
  const unsigned long long size = ZSTD_getFrameContentSize(data.data(), data.size());  // the two error values are huge
  if (size > largest_cubin_bytes) return std::nullopt;
  ZSTD_DCtx* context = decompressor();
  if (context == nullptr) return std::nullopt;
  std::vector<std::byte> bytes(size);
  const std::size_t got = ZSTD_decompressDCtx(context, bytes.data(), bytes.size(), data.data(), data.size());
  if (ZSTD_isError(got) != 0 || got != bytes.size()) return std::nullopt;
  return bytes;
}

}  // namespace ordo::cache
