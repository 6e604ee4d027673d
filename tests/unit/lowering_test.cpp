// The lowerings of expressions, CUDA text and LLVM IR, against the interpreter and each other.
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <llvm/IR/ConstantRange.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "codegen/expression/cuda.hpp"
#include "codegen/expression/host_function.hpp"
#include "codegen/expression/lower.hpp"
#include "codegen/expression/parse.hpp"
#include "codegen/expression/range.hpp"
#include "tests/unit/random_expression.hpp"
#include "tests/unit/scratch.hpp"

using namespace ordo;
using namespace ordo::expression;
using namespace ordo::testing;

namespace {

Expression mask(const std::string& text) {
  auto out = parse(text, Scope::mask, Type::boolean);
  REQUIRE_MESSAGE(out.ok(), (out.ok() ? std::string() : out.error().message));
  return *std::move(out);
}

HostFunction compiled(const Expression& expression, const Domain& domain) {
  auto function = HostFunction::compile(expression, domain);
  REQUIRE_MESSAGE(function.ok(), (function.ok() ? std::string() : function.error().message));
  return *std::move(function);
}

/// The texts of all expressions as functions of one library, by the compiler that made this test.
class CompiledTexts {
 public:
  explicit CompiledTexts(const std::vector<Expression>& expressions) {
    const std::string source = folder_.file("texts.cpp"), library = folder_.file("texts.so");
    std::ofstream out(source);
    out << "#include \"expression/functions.cuh\"\n";
    for (std::size_t i = 0; i < expressions.size(); ++i) {
      out << fmt::format(
          "extern \"C\" bool f{}(int q, int k, int head, int batch, int seqlen_q, int seqlen_k) {{ return {}; }}\n", i,
          to_cuda(expressions[i]));
    }
    out.close();
    const std::string command = fmt::format("{} -std=c++20 -w -O1 -ffp-contract=off -fPIC -shared -I {} -o {} {}", ORDO_CXX,
                                            ORDO_TEMPLATES, library, source);
    REQUIRE(std::system(command.c_str()) == 0);
    library_ = dlopen(library.c_str(), RTLD_NOW);
    REQUIRE(library_ != nullptr);
  }
  ~CompiledTexts() { dlclose(library_); }
  CompiledTexts(const CompiledTexts&) = delete;
  CompiledTexts& operator=(const CompiledTexts&) = delete;

  int operator()(std::size_t i, const Values& v) const {
    const auto function =
        reinterpret_cast<bool (*)(int, int, int, int, int, int)>(dlsym(library_, fmt::format("f{}", i).c_str()));
    REQUIRE((function != nullptr));
    return function(v[0], v[1], v[2], v[3], v[4], v[5]) ? 1 : 0;
  }

 private:
  test::Folder folder_;
  void* library_ = nullptr;
};

/// The same intervals by LLVM's arithmetic.
class LlvmRanges {
 public:
  LlvmRanges(const Expression& expression, const Domain& domain) {
    for (const Node& node : expression.nodes) ranges_.push_back(range(node, domain));
  }
  [[nodiscard]] const llvm::ConstantRange& of(std::size_t node) const { return ranges_[node]; }

 private:
  static llvm::ConstantRange between(std::int64_t low, std::int64_t high, unsigned bits) {
    const auto at = [bits](std::int64_t x) { return llvm::APInt(bits, static_cast<std::uint64_t>(x), true); };
    return llvm::ConstantRange::getNonEmpty(at(low), at(high) + 1);
  }
  /// Whether a comparison always holds, never, or neither.
  static llvm::ConstantRange decided(bool always, bool never) {
    return always ? between(1, 1, 1) : never ? between(0, 0, 1) : llvm::ConstantRange::getFull(1);
  }

  [[nodiscard]] llvm::ConstantRange range(const Node& n, const Domain& domain) const {
    using llvm::CmpInst;
    const auto operand = [&](std::size_t i) -> const llvm::ConstantRange& {
      return ranges_[static_cast<std::size_t>(n.operands[i])];
    };
    const auto compare = [&](CmpInst::Predicate p) {
      return decided(operand(0).icmp(p, operand(1)), operand(0).icmp(CmpInst::getInversePredicate(p), operand(1)));
    };
    const unsigned bits = n.type == Type::boolean ? 1 : 32;
    if (n.type == Type::floating) return llvm::ConstantRange::getFull(32);
    if (n.op == Op::literal) return between(n.integer, n.integer, bits);
    if (n.op == Op::variable) return between(domain[n.variable].low, domain[n.variable].high, 32);
    switch (n.op) {
      case Op::negate:
        return between(0, 0, 32).sub(operand(0));
      case Op::absolute:
        return operand(0).abs();
      case Op::add:
        return operand(0).add(operand(1));
      case Op::subtract:
        return operand(0).sub(operand(1));
      case Op::multiply:
        return operand(0).smul_fast(operand(1));
      case Op::divide:
        return operand(0).sdiv(operand(1));
      case Op::modulo:
        return operand(0).srem(operand(1));
      case Op::minimum:
        return operand(0).smin(operand(1));
      case Op::maximum:
        return operand(0).smax(operand(1));
      case Op::less:
        return compare(CmpInst::ICMP_SLT);
      case Op::less_equal:
        return compare(CmpInst::ICMP_SLE);
      case Op::greater:
        return compare(CmpInst::ICMP_SGT);
      case Op::greater_equal:
        return compare(CmpInst::ICMP_SGE);
      case Op::equal:
        return compare(CmpInst::ICMP_EQ);
      case Op::not_equal:
        return compare(CmpInst::ICMP_NE);
      case Op::logical_and:
        return operand(0).binaryAnd(operand(1));
      case Op::logical_or:
        return operand(0).binaryOr(operand(1));
      case Op::logical_not:
        return operand(0).binaryNot();
      default:
        return operand(1).unionWith(operand(2));
    }
  }

  std::vector<llvm::ConstantRange> ranges_;
};

}  // namespace

TEST_CASE("lowerings: CUDA text, code from IR and the interpreter agree") {
  const Domain domain = small_domain();
  RandomExpressions random(3);
  std::vector<Expression> expressions;
  for (int i = 0; i < 60; ++i) expressions.push_back(random.next(domain, 1 + i % 5));
  expressions.push_back(mask("k <= q && q - k < 256"));
  expressions.push_back(mask("q - k == -2147483647 - 1"));
  const CompiledTexts texts(expressions);
  int ones = 0, zeros = 0;
  for (std::size_t i = 0; i < expressions.size(); ++i) {
    CAPTURE(to_text(expressions[i]));
    const HostFunction function = compiled(expressions[i], domain);
    for (int j = 0; j < 200; ++j) {
      const Values values = random.values(domain);
      const int expected = evaluate(expressions[i], values);
      (expected != 0 ? ones : zeros) += 1;
      if (function(values) != expected) FAIL_CHECK("code from IR gives ", function(values));
      if (texts(i, values) != expected) FAIL_CHECK("CUDA text gives ", texts(i, values));
    }
    std::vector<std::uint8_t> row(67, 9);
    Values values = random.values(domain);
    function.row(values, 900, 66, row.data());
    for (int q = 900; q < 966; ++q) {
      values[0] = q;
      CHECK(row[static_cast<std::size_t>(q - 900)] == evaluate(expressions[i], values));
    }
    CHECK(row[66] == 9);
  }
  CHECK(ones > 1000);
  CHECK(zeros > 1000);
}

TEST_CASE("lowerings: intervals against LLVM's ConstantRange") {
  RandomExpressions random(11);
  int decided = 0;
  for (int i = 0; i < 500; ++i) {
    const Expression expression = random.next(small_domain(), 1 + i % 5);
    CAPTURE(to_text(expression));
    Domain box = small_domain();
    for (const Variable v : {Variable::q, Variable::k}) {
      box[v].low = random.below(900);
      box[v].high = box[v].low + random.below(64);
    }
    RangeEvaluator evaluator(expression);
    (void)evaluator(box);
    const LlvmRanges llvm_ranges(expression, box);
    for (std::size_t node = 0; node < expression.nodes.size(); ++node) {
      if (expression.nodes[node].type == Type::floating) continue;
      const Interval ours = evaluator.nodes()[node];
      const llvm::ConstantRange& theirs = llvm_ranges.of(node);
      // Both hold every value, so they have one in common; and what one decides the other must not deny.
      const bool condition = expression.nodes[node].type == Type::boolean;
      const unsigned bits = condition ? 1 : 32;
      const auto at = [bits](std::int64_t x) { return llvm::APInt(bits, static_cast<std::uint64_t>(x), true); };
      const auto mine = llvm::ConstantRange::getNonEmpty(at(ours.low), at(ours.high) + 1);
      if (mine.intersectWith(theirs).isEmptySet())
        FAIL_CHECK("nothing in common at ", to_text(expression, static_cast<int>(node)));
      if (condition && theirs.isSingleElement()) {
        ++decided;
        if (!ours.single()) FAIL_CHECK("LLVM decides and we do not: ", to_text(expression, static_cast<int>(node)));
      }
    }
  }
  CHECK(decided > 500);
}

TEST_CASE("lowerings: live registers and instructions of the IR") {
  const auto measure = [](const std::string& text, const Domain& domain = {}) {
    auto live = live_registers(mask(text), domain);
    REQUIRE(live.ok());
    return *live;
  };
  const LiveRegisters causal = measure("k <= q");
  CHECK(causal.instructions == 1);
  CHECK(causal.words == 2);  // q and k
  CHECK(causal.predicates == 1);
  CHECK(causal.inputs == 2);
  const LiveRegisters window = measure("k <= q && q - k < 1024");
  CHECK(window.instructions <= 4);
  CHECK(window.words <= 3);
  CHECK(window.predicates <= 2);
  const LiveRegisters aligned = measure("k <= q + (seqlen_k - seqlen_q)");
  CHECK(aligned.inputs == 4);
  Domain known;
  known.set(Variable::seqlen_q, 100);
  known.set(Variable::seqlen_k, 300);
  const LiveRegisters fixed = measure("k <= q + (seqlen_k - seqlen_q)", known);
  CHECK(fixed.inputs == 2);
  CHECK(fixed.words < aligned.words);
  CHECK(measure("true").inputs == 0);
  // Three sums that all live until the end.
  CHECK(measure("(q + head) * (k + head) + (q + batch) * (k + batch) < (q + k) * (head + batch)").words >= 4);
  const auto text = ir_text(mask("k <= q"));
  REQUIRE(text.ok());
  CHECK(text->find("define") != std::string::npos);
  CHECK(text->find("icmp") != std::string::npos);
}
