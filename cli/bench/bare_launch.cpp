#include "cli/bench/bare_launch.hpp"

#include <dlfcn.h>

#include <utility>

namespace ordo::cli {
namespace {

/// Graph functions that ordo itself has no use for.
struct GraphReader {
  decltype(&::cuGraphGetNodes) nodes = nullptr;
  decltype(&::cuGraphNodeGetType) type = nullptr;
  CUresult(CUDAAPI* parameters)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS_v2*) = nullptr;
  decltype(&::cuGraphKernelNodeGetAttribute) attribute = nullptr;

  static Result<GraphReader> open() {
    void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);  // open already
    GraphReader reader;
    const auto find = [&](auto& function, const char* name) {
      if (library != nullptr) function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
      return function != nullptr;
    };
    if (find(reader.nodes, "cuGraphGetNodes") && find(reader.type, "cuGraphNodeGetType") &&
        find(reader.parameters, "cuGraphKernelNodeGetParams_v2") && find(reader.attribute, "cuGraphKernelNodeGetAttribute"))
      return reader;
    return Error{ErrorCode::driver, "the driver has no functions to read a graph's kernel nodes"};
  }
};

}  // namespace

BareLaunch::BareLaunch(BareLaunch&& other) noexcept
    : driver_(other.driver_), graph_(std::exchange(other.graph_, nullptr)), nodes_(std::move(other.nodes_)) {}

BareLaunch::~BareLaunch() {
  if (graph_ != nullptr) driver_->graphDestroy(graph_);
}

Result<BareLaunch> BareLaunch::capture(const Driver& driver, CUstream stream, const std::function<Result<void>()>& launch) {
  BareLaunch bare(driver);
  if (auto ok = driver.check(driver.streamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "begin capture"); !ok)
    return ok.error();
  const auto launched = launch();
  if (auto ok = driver.check(driver.streamEndCapture(stream, &bare.graph_), "end capture"); !ok) return ok.error();
  if (!launched) return launched.error();
  if (auto ok = bare.read_nodes(); !ok) return ok.error();
  return bare;
}

Result<void> BareLaunch::read_nodes() {
  auto reader = GraphReader::open();
  if (!reader) return reader.error();
  std::size_t count = 0;
  if (auto ok = driver_->check(reader->nodes(graph_, nullptr, &count), "cuGraphGetNodes"); !ok) return ok;
  std::vector<CUgraphNode> nodes(count);
  if (auto ok = driver_->check(reader->nodes(graph_, nodes.data(), &count), "cuGraphGetNodes"); !ok) return ok;
  for (CUgraphNode graph_node : nodes) {
    CUgraphNodeType type{};
    if (auto ok = driver_->check(reader->type(graph_node, &type), "cuGraphNodeGetType"); !ok) return ok;
    if (type != CU_GRAPH_NODE_TYPE_KERNEL) continue;  // `exact` also clears its maxima
    CUDA_KERNEL_NODE_PARAMS_v2 params{};
    if (auto ok = driver_->check(reader->parameters(graph_node, &params), "cuGraphKernelNodeGetParams"); !ok) return ok;
    Node node;
    node.function = params.func;
    if (node.function == nullptr)
      if (auto ok = driver_->check(driver_->kernelGetFunction(&node.function, params.kern), "cuKernelGetFunction"); !ok)
        return ok;
    node.config.gridDimX = params.gridDimX;
    node.config.gridDimY = params.gridDimY;
    node.config.gridDimZ = params.gridDimZ;
    node.config.blockDimX = params.blockDimX;
    node.config.blockDimY = params.blockDimY;
    node.config.blockDimZ = params.blockDimZ;
    node.config.sharedMemBytes = params.sharedMemBytes;
    node.config.numAttrs = 1;
    node.parameters = params.kernelParams;
    CUlaunchAttributeValue cooperative{};
    if (reader->attribute(graph_node, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &cooperative) == CUDA_SUCCESS &&
        cooperative.cooperative != 0) {
      node.attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
      node.attribute.value.cooperative = 1;
    } else {  // a graph keeps an early start as an edge; every kernel of ordo waits for the one before where it must
      node.attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
      node.attribute.value.programmaticStreamSerializationAllowed = nodes_.empty() ? 0 : 1;
    }
    nodes_.push_back(node);
  }
  if (nodes_.empty()) return Error{ErrorCode::driver, "the captured launch holds no kernel"};
  return {};
}

Result<void> BareLaunch::launch(CUstream stream) {
  for (Node& node : nodes_) {
    node.config.hStream = stream;
    node.config.attrs = &node.attribute;
    if (const CUresult result = driver_->launchKernelEx(&node.config, node.function, node.parameters, nullptr);
        result != CUDA_SUCCESS)
      return driver_->check(result, "cuLaunchKernelEx");
  }
  return {};
}

}  // namespace ordo::cli
