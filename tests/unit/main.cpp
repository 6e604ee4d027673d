#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>

// No test reads or writes what this user's `ordo calibrate` stored.
int main(int argc, char** argv) {
  (void)::setenv("XDG_CONFIG_HOME", "/nonexistent", 1);
  (void)::unsetenv("ORDO_COST");
  return doctest::Context(argc, argv).run();
}
