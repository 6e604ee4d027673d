// A libnvrtc that fails in the way $FAKE_NVRTC names, to test what is said about installations that are broken:
//   old          it is NVRTC 12.4
//   no_builtins  its builtins library cannot be opened
//   no_build     its PTX does not tell the build number
// Built as a library of its own; see tests/CMakeLists.txt.
#include <nvrtc.h>

#include <cstdlib>
#include <cstring>
#include <string_view>

namespace {

bool mode_is(std::string_view mode) {
  const char* value = std::getenv("FAKE_NVRTC");
  return value != nullptr && value == mode;
}

constexpr char builtins_log[] =
    "nvrtc: error: failed to open libnvrtc-builtins.so.13.0.\n  Make sure that it is installed correctly.";
constexpr char ptx_text[] = ".version 9.0\n";

}  // namespace

extern "C" {

nvrtcResult nvrtcVersion(int* major, int* minor) {
  *major = mode_is("old") ? 12 : 13;
  *minor = mode_is("old") ? 4 : 0;
  return NVRTC_SUCCESS;
}

const char* nvrtcGetErrorString(nvrtcResult result) {
  return result == NVRTC_ERROR_BUILTIN_OPERATION_FAILURE ? "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE" : "NVRTC_ERROR";
}

nvrtcResult nvrtcGetNumSupportedArchs(int* count) {
  *count = 0;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetSupportedArchs(int*) { return NVRTC_SUCCESS; }

nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char*, const char*, int, const char* const*, const char* const*) {
  *program = nullptr;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram*) { return NVRTC_SUCCESS; }

nvrtcResult nvrtcCompileProgram(nvrtcProgram, int, const char* const*) {
  return mode_is("no_builtins") ? NVRTC_ERROR_BUILTIN_OPERATION_FAILURE : NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram, size_t* size) {
  *size = mode_is("no_builtins") ? sizeof builtins_log : 1;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram, char* log) {
  std::memcpy(log, builtins_log, sizeof builtins_log);
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetCUBINSize(nvrtcProgram, size_t* size) {
  *size = 0;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetCUBIN(nvrtcProgram, char*) { return NVRTC_ERROR_INVALID_INPUT; }

nvrtcResult nvrtcGetPTXSize(nvrtcProgram, size_t* size) {
  *size = sizeof ptx_text;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetPTX(nvrtcProgram, char* ptx) {
  std::memcpy(ptx, ptx_text, sizeof ptx_text);
  return NVRTC_SUCCESS;
}

}  // extern "C"
