// Expressions as functions of this machine, compiled from their IR.
#pragma once

#include <cstdint>
#include <memory>

#include "codegen/expression/expression.hpp"
#include "codegen/expression/range.hpp"

// -fsanitize=function looks for a type in front of what is called; code made at run time has none.
#if defined(__clang__)
#define ORDO_CALLS_MADE_CODE __attribute__((no_sanitize("function")))
#else
#define ORDO_CALLS_MADE_CODE
#endif

namespace ordo::expression {

/// A compiled expression. Copies share the code; calls are thread-safe.
class HostFunction {
 public:
  /// Compiles with LLVM for this processor: some ten milliseconds. `known` must pass check_ranges(); what it fixes is a constant
  /// of the code, and calls must stay inside it. Errors (internal): LLVM cannot make code for this machine.
  static Result<HostFunction> compile(const Expression& expression, const Domain& known);

  /// The value: a boolean or integer, or the bits of a fraction.
  [[nodiscard]] ORDO_CALLS_MADE_CODE std::int32_t operator()(const Values& values) const { return value_(values.data()); }

  /// out[i] = the value, which is a boolean, at q = first_q + i for i in [0, count), everything else as in `values`.
  ORDO_CALLS_MADE_CODE void row(const Values& values, std::int32_t first_q, std::int32_t count, std::uint8_t* out) const {
    row_(values.data(), first_q, count, out);
  }

 private:
  HostFunction() = default;

  std::shared_ptr<const void> code_;  ///< keeps the functions
  std::int32_t (*value_)(const std::int32_t* values) = nullptr;
  void (*row_)(const std::int32_t* values, std::int32_t first_q, std::int32_t count, std::uint8_t* out) = nullptr;
};

}  // namespace ordo::expression

#undef ORDO_CALLS_MADE_CODE
