// Functions that the text of an expression calls (codegen/expression/). Plain C++: host and device compile the same text.
#pragma once

#include "schedule/schedule.cuh"

namespace ordo::expression {

/// Defined by comparisons alone, so that NaN and signed zeros come out the same wherever an expression is evaluated.
template <class T>
ORDO_HOST_DEVICE constexpr T lesser(T a, T b) {
  return b < a ? b : a;
}
template <class T>
ORDO_HOST_DEVICE constexpr T greater(T a, T b) {
  return a < b ? b : a;
}
template <class T>
ORDO_HOST_DEVICE constexpr T absolute(T a) {
  return a < T(0) ? -a : a;
}

}  // namespace ordo::expression
