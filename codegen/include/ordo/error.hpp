// Errors as values: every ordo function that can fail returns a Result.
#pragma once

#include <cassert>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#if defined(ORDO_STATIC)
#define ORDO_API
#else
#define ORDO_API __attribute__((visibility("default")))
#endif

namespace ordo {

/// What kind of failure an Error is. A caller decides by this, a person by the message.
enum class ErrorCode {
  invalid_problem,   ///< the problem asked for breaks one of its own rules (sizes, heads, dtype)
  invalid_plan,      ///< the plan is malformed, unproved, or does not fit the problem
  invalid_argument,  ///< any other argument of a call is wrong (pointer, alignment, option, name)
  unsupported,       ///< well-formed, but this version of ordo has no kernel for it
  toolchain,         ///< NVRTC is missing, too old, incomplete, or does not know the architecture
  compile,           ///< NVRTC refused the source, or its output broke a rule (a spill, a warning)
  bad_cubin,         ///< bytes that should be a cubin are not, or are damaged
  no_device,         ///< no CUDA driver, or no such device
  driver,            ///< a CUDA driver call failed
  io,                ///< a file could not be read or written, or holds what it should not
  cache,             ///< the cache store failed (never returned by a launch: the engine works without it)
  not_prepared,  ///< a kernel that is not ready was asked for where none may be made: after seal(), or while a stream captures
  cancelled,     ///< the caller asked to stop
  internal,      ///< a bug in ordo
};

/// The code's name as it appears in messages and JSON, e.g. "invalid_problem".
ORDO_API std::string_view to_string(ErrorCode code);

/// A failure. `message` names what was asked, what was found and what to do, in one or a few lines.
struct Error {
  ErrorCode code = ErrorCode::internal;
  std::string message;
};

/// A value or an Error. Check with `if (!result)` before `*result`.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: implicit by design
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT

  [[nodiscard]] bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(value()); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  [[nodiscard]] const Error& error() const {
    assert(!ok());
    return *std::get_if<1>(&state_);
  }

 private:
  T& value() {
    assert(ok());
    return *std::get_if<0>(&state_);
  }
  const T& value() const {
    assert(ok());
    return *std::get_if<0>(&state_);
  }
  std::variant<T, Error> state_;
};

/// Success or an Error.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT: implicit by design

  [[nodiscard]] bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  [[nodiscard]] const Error& error() const {
    assert(!ok());
    return *error_;
  }

 private:
  std::optional<Error> error_;
};

}  // namespace ordo
