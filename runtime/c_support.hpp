// What the files of the C interface share: handles, and the way from a C++ result to a status and this thread's message.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <optional>
#include <string_view>
#include <utility>

#include "ordo/ordo.h"
#include "ordo/ordo.hpp"
#include "ordo/tuner.hpp"
#include "runtime/process.hpp"

struct ordo_engine {
  ordo::Engine engine;
  ordo::MadeIn process = {};
  std::mutex mutex = {};                  // of what follows
  std::optional<ordo::Tuner> tuner = {};  // made when a query or a tuning first needs it
};

namespace ordo::c {

ordo_status status_of(ErrorCode code);

/// Keeps the message, where there is memory for it, and gives back the status.
ordo_status fail(ordo_status status, std::string_view message) noexcept;

/// Runs `body`, which returns a Result<void>; nothing leaves but a status.
template <class Body>
ordo_status guarded(Body&& body) noexcept {
  try {
    const Result<void> result = std::forward<Body>(body)();
    return result ? ORDO_OK : fail(status_of(result.error().code), result.error().message);
  } catch (const std::bad_alloc&) {
    return fail(ORDO_OUT_OF_MEMORY, "out of host memory");
  } catch (const std::exception& exception) {
    return fail(ORDO_INTERNAL, exception.what());
  } catch (...) {
    return fail(ORDO_INTERNAL, "unknown exception");
  }
}

inline Error missing(std::string_view name) {
  return {ErrorCode::invalid_argument, fmt::format("{} is NULL; pass a valid pointer", name)};
}

/// Whether a structure's struct_size can be one.
template <class T>
Result<void> check_struct(const T* of, std::string_view name) {
  constexpr std::size_t most = 4096;  // no later version is larger; a size never set is likely to be
  if (of == nullptr) return missing(name);
  if (of->struct_size >= sizeof(std::size_t) && of->struct_size <= most) return {};
  return Error{ErrorCode::invalid_argument,
               fmt::format("{}.struct_size is {}; set it to sizeof({})", name, of->struct_size, name)};
}

/// The caller's structure as this version knows it: fields the caller does not have are zero. Fields that only the caller has
/// must be zero: to pass over one that is set would be to do something else than was asked.
template <class T>
Result<T> read_struct(const T* from, std::string_view name) {
  if (auto ok = check_struct(from, name); !ok) return ok.error();
  const auto* bytes = reinterpret_cast<const unsigned char*>(from);
  const unsigned char* end = bytes + from->struct_size;
  if (from->struct_size > sizeof(T) && std::any_of(bytes + sizeof(T), end, [](unsigned char byte) { return byte != 0; })) {
    return Error{
        ErrorCode::invalid_argument,
        fmt::format("{}.struct_size is {}, and something behind the {} bytes that this ordo knows is not zero: the caller "
                    "was built with a later ordo.h and sets a field that this library lacks. Leave that field zero, or "
                    "load the later library",
                    name, from->struct_size, sizeof(T))};
  }
  T out{};
  std::memcpy(&out, from, std::min(from->struct_size, sizeof(T)));
  return out;
}

/// Writes as much of `from` as the caller's structure has room for, its struct_size aside. Fields that only the caller has become
/// zero.
template <class T>
void write_struct(const T& from, T* to) {
  constexpr std::size_t head = sizeof(std::size_t);
  auto* bytes = reinterpret_cast<char*>(to);
  std::memcpy(bytes + head, reinterpret_cast<const char*>(&from) + head, std::min(to->struct_size, sizeof(T)) - head);
  if (to->struct_size > sizeof(T)) std::memset(bytes + sizeof(T), 0, to->struct_size - sizeof(T));
}

}  // namespace ordo::c
