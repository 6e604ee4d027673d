// A CUtensorMap as device code sees it: opaque, a kernel parameter. Plain C++: the host fills it.
#pragma once

namespace ordo {

struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

}  // namespace ordo
