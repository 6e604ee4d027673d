// Fields that the texts of OverlapGemm and OverlapPlan share.
#pragma once

#include <vector>

#include "codegen/fields.hpp"
#include "ordo/overlap.hpp"

namespace ordo {

/// ranks, dtype, a, b, out, bias and activation, which a kernel is made for, behind `fields`.
template <class Noun>
void add_kernel_fields(std::vector<text::Field>& fields, Noun& of) {
  for (text::Field& field : std::vector<text::Field>{
           text::integer_field("ranks", of.ranks), text::named_field("dtype", of.dtype, &parse_dtype),
           text::named_field("a", of.a, &parse_storage), text::named_field("b", of.b, &parse_storage),
           text::named_field("out", of.out, &parse_output_type), text::named_field("bias", of.bias, &text::parse_yes_no),
           text::named_field("activation", of.activation, &parse_activation)})
    fields.push_back(std::move(field));
}

}  // namespace ordo
