#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
// NVRTC is not instrumented: of its own locks the sanitizer sees only some.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions();
const char* __tsan_default_suppressions() { return "race:libnvrtc.so\n"; }
#endif
#endif

// No test reads or writes what this user's `ordo calibrate` stored.
int main(int argc, char** argv) {
  (void)::setenv("XDG_CONFIG_HOME", "/nonexistent", 1);
  (void)::unsetenv("ORDO_COST");
  return doctest::Context(argc, argv).run();
}
