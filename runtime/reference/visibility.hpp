// A mask by expression on the CPU.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "codegen/expression/host_function.hpp"
#include "ordo/problem.hpp"

namespace ordo::reference {

/// The pairs that an expression mask shows, by the code that LLVM makes of the expression; where it can make none, by the
/// interpreter. Thread-safe once made.
class Visibility {
 public:
  /// Null for masks that need no expression. `problem` must be valid and outlive the object.
  static std::unique_ptr<Visibility> of(const AttentionBackward& problem);

  /// out[i] = 1 where query first_q + i of (batch, head) sees `key`, else 0, for i in [0, count).
  void row(std::int64_t batch, std::int64_t head, std::int64_t key, std::int64_t first_q, std::int64_t count,
           std::uint8_t* out) const;

 private:
  explicit Visibility(const AttentionBackward& problem);

  expression::Expression expression_;
  expression::Values lengths_{};
  std::optional<expression::HostFunction> function_;
};

}  // namespace ordo::reference
