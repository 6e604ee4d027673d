// Masks by expression that the GPU suite checks. reference_source.hpp knows them by number.
#pragma once

#include <array>

#include "ordo/problem.hpp"

namespace ordo::test {

inline constexpr std::array kMaskTexts{
    "expr:k<=q&&q-k<200",                             // window
    "expr:k<5||k<=q&&q-k<64",                         // window and sink
    "expr:doc=300;q/doc==k/doc&&k<=q",                // documents of equal length
    "expr:abs(q+(seqlen_k-seqlen_q)-k)<150",          // both sides, aligned to the bottom right
    "expr:(q-k)%3==0",                                // strided: intervals know nothing
    "expr:k<=q&&q-k<100*(head+1)&&(batch!=1||k>70)",  // another one for every head and batch
    "expr:q>300&&q<500",                              // most queries see nothing
};

/// The number of a mask in reference_source.hpp; -1, which sees nothing there, for an unknown one.
inline int number_of(Mask mask) {
  if (mask == Mask::full) return 0;
  if (mask == Mask::causal) return 1;
  for (std::size_t i = 0; i < kMaskTexts.size(); ++i)
    if (to_string(mask) == kMaskTexts[i]) return static_cast<int>(i) + 2;
  return -1;
}

}  // namespace ordo::test
