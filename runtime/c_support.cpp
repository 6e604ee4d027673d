#include "runtime/c_support.hpp"

#include <string>

namespace ordo::c {
namespace {

std::string& last_error() {
  thread_local std::string message;
  return message;
}

}  // namespace

ordo_status status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_problem:
      return ORDO_INVALID_PROBLEM;
    case ErrorCode::invalid_plan:
      return ORDO_INVALID_PLAN;
    case ErrorCode::invalid_argument:
      return ORDO_INVALID_ARGUMENT;
    case ErrorCode::unsupported:
      return ORDO_UNSUPPORTED;
    case ErrorCode::toolchain:
      return ORDO_TOOLCHAIN;
    case ErrorCode::compile:
      return ORDO_COMPILE;
    case ErrorCode::bad_cubin:
      return ORDO_BAD_CUBIN;
    case ErrorCode::no_device:
      return ORDO_NO_DEVICE;
    case ErrorCode::driver:
      return ORDO_DRIVER;
    case ErrorCode::io:
      return ORDO_IO;
    case ErrorCode::cache:
      return ORDO_CACHE;
    case ErrorCode::not_prepared:
      return ORDO_NOT_PREPARED;
    case ErrorCode::cancelled:
      return ORDO_CANCELLED;
    case ErrorCode::internal:
      return ORDO_INTERNAL;
  }
  return ORDO_INTERNAL;
}

ordo_status fail(ordo_status status, std::string_view message) noexcept {
  try {
    last_error() = message;
  } catch (...) {
    last_error().clear();
  }
  return status;
}

}  // namespace ordo::c

const char* ordo_status_name(ordo_status status) {
  switch (status) {
    case ORDO_OK:
      return "ok";
    case ORDO_INVALID_PROBLEM:
      return "invalid_problem";
    case ORDO_INVALID_PLAN:
      return "invalid_plan";
    case ORDO_INVALID_ARGUMENT:
      return "invalid_argument";
    case ORDO_UNSUPPORTED:
      return "unsupported";
    case ORDO_TOOLCHAIN:
      return "toolchain";
    case ORDO_COMPILE:
      return "compile";
    case ORDO_BAD_CUBIN:
      return "bad_cubin";
    case ORDO_NO_DEVICE:
      return "no_device";
    case ORDO_DRIVER:
      return "driver";
    case ORDO_IO:
      return "io";
    case ORDO_CACHE:
      return "cache";
    case ORDO_NOT_PREPARED:
      return "not_prepared";
    case ORDO_CANCELLED:
      return "cancelled";
    case ORDO_INTERNAL:
      return "internal";
    case ORDO_OUT_OF_MEMORY:
      return "out_of_memory";
  }
  return "unknown";
}

const char* ordo_last_error(void) { return ordo::c::last_error().c_str(); }
