// The generated forward: its text, what NVRTC makes of it, and what it refuses without a GPU.
#include <doctest/doctest.h>

#include "codegen/generate/attention_forward.hpp"
#include "runtime/attention_forward.hpp"
#include "runtime/compile_log.hpp"
#include "runtime/compiler.hpp"
#include "templates/attention_forward/params.cuh"

namespace ordo {
namespace {

std::vector<AttentionBackward> every_kind() {
  std::vector<AttentionBackward> kinds;
  for (const DType dtype : {DType::bf16, DType::fp16})
    for (const std::int64_t head_dim : {64, 128})
      for (const Mask mask : {Mask::full, Mask::causal, *parse_mask("expr:k<=q&&q-k<128*(head+1)")})
        kinds.push_back(
            {.seqlen_q = 1000, .seqlen_k = 2000, .heads = 4, .kv_heads = 2, .head_dim = head_dim, .mask = mask, .dtype = dtype});
  return kinds;
}

}  // namespace

TEST_CASE("forward: one text for all lengths, batches and heads of a kind, another for each kind") {
  const Target target;
  std::vector<std::string> texts;
  for (AttentionBackward problem : every_kind()) {
    const std::string text = generate_attention_forward(problem, target).text;
    CHECK(std::find(texts.begin(), texts.end(), text) == texts.end());
    texts.push_back(text);
    problem.seqlen_q = 7;
    problem.batch = 3;
    problem.kv_heads = 4;
    CHECK(generate_attention_forward(problem, target).text == text);
  }
}

TEST_CASE("forward: every kind compiles without spills and takes the parameters the host passes") {
  const auto compiler = Compiler::open();
  if (!compiler) {
    MESSAGE("skipped: ", compiler.error().message);
    return;
  }
  for (const AttentionBackward& problem : every_kind()) {
    const auto cubin = compiler->compile(generate_attention_forward(problem, Target{}));
    REQUIRE_MESSAGE(cubin.ok(), to_text(problem), ": ", (cubin ? "" : cubin.error().message));
    CHECK(cubin->warnings.empty());
    const auto bytes = static_cast<std::size_t>(cubin->kernel.parameter_bytes);
    CHECK(bytes >= sizeof(attention_forward::Params));
    CHECK(bytes < sizeof(attention_forward::Params) + alignof(attention_forward::Params));
  }
}

TEST_CASE("forward: an invalid problem is refused before anything is compiled") {
  KernelBuilderOptions options;
  options.memory_cache_only = true;
  const auto forward = AttentionForward::create({.seqlen_q = 64, .seqlen_k = 64, .head_dim = 96}, options);
  REQUIRE_FALSE(forward.ok());
  CHECK(forward.error().code == ErrorCode::invalid_problem);
}

}  // namespace ordo
