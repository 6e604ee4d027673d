#include "runtime/reference/visibility.hpp"

#include "codegen/expression/mask.hpp"

namespace ordo::reference {

using expression::Variable;

std::unique_ptr<Visibility> Visibility::of(const AttentionBackward& problem) {
  if (problem.mask.expression() == nullptr) return nullptr;
  return std::unique_ptr<Visibility>(new Visibility(problem));
}

Visibility::Visibility(const AttentionBackward& problem) : expression_(problem.mask.expression()->expression) {
  const auto set = [this](Variable variable, std::int64_t value) {
    lengths_[static_cast<std::size_t>(variable)] = static_cast<std::int32_t>(value);
  };
  set(Variable::seqlen_q, problem.seqlen_q);
  set(Variable::seqlen_k, problem.seqlen_k);
  auto compiled = expression::HostFunction::compile(expression_, expression::mask_domain(problem));
  if (compiled) function_ = *std::move(compiled);
}

void Visibility::row(std::int64_t batch, std::int64_t head, std::int64_t key, std::int64_t first_q, std::int64_t count,
                     std::uint8_t* out) const {
  expression::Values values = lengths_;
  const auto set = [&values](Variable variable, std::int64_t value) {
    values[static_cast<std::size_t>(variable)] = static_cast<std::int32_t>(value);
  };
  set(Variable::batch, batch);
  set(Variable::head, head);
  set(Variable::k, key);
  if (function_) return function_->row(values, static_cast<std::int32_t>(first_q), static_cast<std::int32_t>(count), out);
  for (std::int64_t i = 0; i < count; ++i) {
    set(Variable::q, first_q + i);
    out[i] = expression::evaluate(expression_, values) != 0 ? 1 : 0;
  }
}

}  // namespace ordo::reference
