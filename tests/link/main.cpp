// Programs that link ordo, on a driver of the imagination: it is loaded first, and ordo finds it under the name it looks for.
#define DOCTEST_CONFIG_IMPLEMENT
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (dlopen(ORDO_FAKE_CUDA, RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  return doctest::Context(argc, argv).run();
}
