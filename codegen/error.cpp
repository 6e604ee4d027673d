#include "ordo/error.hpp"

namespace ordo {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_problem:
      return "invalid_problem";
    case ErrorCode::invalid_plan:
      return "invalid_plan";
    case ErrorCode::invalid_argument:
      return "invalid_argument";
    case ErrorCode::unsupported:
      return "unsupported";
    case ErrorCode::toolchain:
      return "toolchain";
    case ErrorCode::compile:
      return "compile";
    case ErrorCode::bad_cubin:
      return "bad_cubin";
    case ErrorCode::no_device:
      return "no_device";
    case ErrorCode::driver:
      return "driver";
    case ErrorCode::io:
      return "io";
    case ErrorCode::cache:
      return "cache";
    case ErrorCode::not_prepared:
      return "not_prepared";
    case ErrorCode::cancelled:
      return "cancelled";
    case ErrorCode::internal:
      return "internal";
  }
  return "unknown";
}

}  // namespace ordo
