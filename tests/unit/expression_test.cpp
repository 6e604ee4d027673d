// The expression language: text, types, ranges, folding.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "codegen/expression/expression.hpp"
#include "codegen/expression/parse.hpp"
#include "codegen/expression/range.hpp"
#include "tests/fuzz/expression.hpp"
#include "tests/unit/random_expression.hpp"

using namespace ordo;
using namespace ordo::expression;
using namespace ordo::testing;

namespace {

Expression parsed(const std::string& text, Scope scope = Scope::mask, Type type = Type::boolean) {
  auto out = parse(text, scope, type);
  REQUIRE_MESSAGE(out.ok(), (out.ok() ? std::string() : out.error().message));
  return *std::move(out);
}

std::string canonical(const std::string& text) { return to_text(parsed(text)); }

void check_refused(const std::string& text, const std::string& expected) {
  CAPTURE(text);
  const auto out = parse(text, Scope::mask, Type::boolean);
  REQUIRE_FALSE(out.ok());
  CHECK(out.error().code == ErrorCode::invalid_argument);
  CHECK_MESSAGE(out.error().message.find(expected) != std::string::npos, out.error().message);
}

bool sees(const std::string& text, int q, int k) {
  Values values{};
  values[0] = q;
  values[1] = k;
  return evaluate(parsed(text), values) != 0;
}

}  // namespace

TEST_CASE("expression: canonical text") {
  CHECK(canonical("k <= q && q - k < 1024") == "k<=q&&q-k<1024");
  CHECK(canonical(" window = 512 ;\n k<=q && q-k < window") == "window=512;k<=q&&q-k<window");
  CHECK(canonical("((q)) - ((k - 3)) < (2 * (q + 1))") == "q-(k-3)<2*(q+1)");
  CHECK(canonical("(q - k) - 3 < q - -3") == "q-k-3<q--3");
  CHECK(canonical("!(q < k) || (q == k) != true") == "!(q<k)||(q==k)!=true");
  CHECK(canonical("(q < k ? k < 3 : q < 3) ? true : false") == "(q<k?k<3:q<3)?true:false");
  CHECK(canonical("q < k ? k < 3 : q < 3 ? true : false") == "q<k?k<3:q<3?true:false");
  CHECK(canonical("min(q, 3) == abs(-k) % 007") == "min(q,3)==abs(-k)%7");
  CHECK(canonical("float(q) * 0.50 < 1e9") == "float(q)*0.5<1000000000.0");
  CHECK(canonical("float(q) < 2.0") == "float(q)<2.0");
  CHECK(canonical("(q < 3 && k < 3) || head == 0 && batch == 0") == "q<3&&k<3||head==0&&batch==0");
  CHECK(canonical("doc = q / 512; doc == k / 512 && doc > 0") == "doc=q/512;doc==k/512&&doc>0");
}

TEST_CASE("expression: what canonical text says is what was read") {
  RandomExpressions random(1);
  for (int i = 0; i < 400; ++i) {
    const std::string text = random.condition(1 + i % 6);
    CAPTURE(text);
    const auto once = parse(text, Scope::mask, Type::boolean);
    if (!once) {
      CHECK(once.error().message.find("operations") != std::string::npos);  // too large
      continue;
    }
    const auto again = parse(to_text(*once), Scope::mask, Type::boolean);
    REQUIRE(again.ok());
    CHECK(*again == *once);
    CHECK(to_text(*again) == to_text(*once));
  }
}

TEST_CASE("expression: values") {
  CHECK(sees("k <= q && q - k < 3", 5, 3));
  CHECK_FALSE(sees("k <= q && q - k < 3", 5, 2));
  CHECK_FALSE(sees("k <= q && q - k < 3", 5, 6));
  CHECK(sees("q - 7 / 2 * 2 == -1 && -7 / 2 == -3 && -7 % 2 == -1 && 7 % -2 == 1", 5, 0));
  CHECK(sees("w = 4; d = q / w; d == k / w", 7, 4));
  CHECK_FALSE(sees("w = 4; d = q / w; d == k / w", 7, 8));
  CHECK(sees("q < 3 ? k == 1 : k == 2", 9, 2));
  CHECK(sees("min(q, k) == 4 && max(q, k) == 9 && abs(k - q) == 5", 9, 4));
  CHECK(sees("float(q) / 2.0 == 4.5 && 1.0 / 0.0 > 1e38 && !(0.0 / 0.0 == 0.0 / 0.0)", 9, 2));
}

TEST_CASE("expression: errors name the column, what is there and what is allowed") {
  check_refused("", "column 1: found the end of the text where a name, a number, \"(\", \"-\" or \"!\" is allowed");
  check_refused("k <=", "column 5: found the end of the text");
  check_refused("k <= q)", "column 7: found \")\" where an operator or the end of the text is allowed");
  check_refused("(k <= q", "column 8: found the end of the text where \")\" or an operator is allowed");
  check_refused("k = q", "\"k\" has a meaning already");
  check_refused("k <= q = 3", "column 8: found \"=\" where an operator or the end of the text is allowed; == compares");
  check_refused("k <= q; q", "column 7: found \";\"");
  check_refused("k <= p", "column 6: \"p\" is unknown; names are q, k, head, batch, seqlen_q, seqlen_k");
  check_refused("k <= unit", "\"unit\" is unknown");
  check_refused("w = 3; w = 4; k < w", "column 8: \"w\" is defined twice");
  check_refused("w = 3; k < q", "\"w\" is defined and never used");
  check_refused("w = 3; v = w; k < v", "\"v\" is only another name for \"w\"");
  check_refused("k < w; w = 3", "\"w\" is unknown");
  check_refused("min = 3; k < min", "\"min\" has a meaning already");
  check_refused("q + k", "column 1: the expression is a whole number; a condition is needed");
  check_refused("q && k < 3", "column 3: \"&&\" joins two conditions, and its left side is a whole number");
  check_refused("k < 3 && 1.5", "its right side is a fraction");
  check_refused("0 <= k <= q", "column 8: \"<=\" compares a comparison; write a <= b && b <= c");
  check_refused("(k < q) + 1 < 3", "\"+\" takes numbers, and its left side is a condition");
  check_refused("q < 1.5",
                "column 3: \"<\" has a whole number on its left and a fraction on its right; float(x) makes a fraction");
  check_refused("(q < 3) == 1", "\"==\" has a condition on its left and a whole number on its right");
  check_refused("1.5 % 2.0 < 1.0", "\"%\" takes whole numbers");
  check_refused("q < 3 ? 1 : true", "chooses between a whole number and a condition");
  check_refused("q ? true : false", "\"?\" asks a condition, and a whole number stands before it");
  check_refused("!q", "column 1: \"!\" takes a condition, and a whole number follows");
  check_refused("-(q < 3)", "\"-\" takes a number, and a condition follows");
  check_refused("sqrt(q) < 3", "\"sqrt\" is not a function; the functions are min, max, abs and float");
  check_refused("min(q) < 3", "column 6: found \")\" where \",\" or an operator is allowed");
  check_refused("min < 3", "column 5: found \"<\" where \"(\" is allowed");
  check_refused("abs(q < 3)", "\"abs\" does not take a condition");
  check_refused("q < 2147483648", "column 5: \"2147483648\" is out of range");
  check_refused("float(q) < 1e99", "\"1e99\" is out of range");
  check_refused("q < 3x", "column 5: \"3x\" is neither a number nor a name");
  check_refused("q < 3 & k", "column 7: \"&\" begins nothing");
  check_refused("q < \xc3\xa9", "begins nothing");
  check_refused(std::string("q < \0", 5), "begins nothing");
  check_refused(std::string(5000, '('), "at most 4096");
  check_refused(std::string(200, '(') + "q<k" + std::string(200, ')'), "nested deeper than 64");
  check_refused(std::string(200, '!') + "(q<k)", "nested deeper than 64");
  std::string doubling = "a0 = q + k; ";
  for (int i = 1; i < 30; ++i) doubling += fmt::format("a{} = a{} + a{}; ", i, i - 1, i - 1);
  check_refused(doubling + "a29 < 3", "more than 2048 operations");
}

TEST_CASE("expression: ranges are refused where 32 bits or a divisor do not hold") {
  const auto refused = [](const std::string& text, const std::string& expected) {
    CAPTURE(text);
    const auto checked = check_ranges(parsed(text), small_domain());
    REQUIRE_FALSE(checked.ok());
    CHECK(checked.error().code == ErrorCode::invalid_problem);
    CHECK_MESSAGE(checked.error().message.find(expected) != std::string::npos, checked.error().message);
  };
  refused("q / k < 3", "q/k may divide by 0: k is within 0 .. 2047");
  refused("q % (k - 5) < 3", "q%(k-5) may divide by 0: k-5 is within -5 .. 2042");
  refused("q * k * 2000 < 3", "q*k*2000 may leave 32 bits: it is within 0 .. 4188162000");
  refused("abs(-2147483647 - 1 - 0 * q) > 0", "may leave 32 bits");
  refused("(-2147483647 - 1) / (0 - 1) > q", "may leave 32 bits");
  refused("w = seqlen_k - 2000; q < k ? q / w < 3 : true", "may divide by 0");
  for (const char* fine :
       {"q * k < 3", "q / max(k, 1) < 3", "q % 64 < k % 7", "seqlen_k > 2000 ? q / (seqlen_k - 2000) < 3 : true",
        "seqlen_k == 2000 || q / (seqlen_k - 2000) < 3", "1.0 / float(k) < 3.0"}) {
    CAPTURE(fine);
    CHECK(check_ranges(parsed(fine), small_domain()).ok());
  }
}

TEST_CASE("expression: intervals hold every value, and folding changes none") {
  RandomExpressions random(7);
  for (int i = 0; i < 400; ++i) {
    const Domain whole = small_domain();
    const Expression expression = random.next(whole);
    CAPTURE(to_text(expression));
    Domain box = whole;
    for (const Variable v : {Variable::q, Variable::k, Variable::head, Variable::batch}) {
      const Interval all = whole[v];
      const int low = random.below(static_cast<int>(all.high) + 1), high = random.below(static_cast<int>(all.high) + 1);
      box[v] = {std::min(low, high), random.below(3) == 0 ? std::min(low, high) : std::max(low, high)};
    }
    RangeEvaluator evaluator(expression);
    const Interval range = evaluator(box);
    const Expression folded = fold(expression, box);
    CHECK(folded.nodes.size() <= expression.nodes.size());
    for (int j = 0; j < 50; ++j) {
      const Values values = random.values(box);
      const int value = evaluate(expression, values);
      if (value < range.low || value > range.high || evaluate(folded, values) != value) FAIL_CHECK("value ", value);
    }
  }
}

TEST_CASE("expression: folding") {
  const auto folded = [](const std::string& text) { return to_text(fold(parsed(text), small_domain())); };
  CHECK(folded("k <= q + (seqlen_k - seqlen_q)") == "k<=q+1000");
  CHECK(folded("w = 8 * 64; k <= q && q - k < w") == "k<=q&&q-k<512");
  CHECK(folded("k < 5000 && q < 10") == "q<10");
  CHECK(folded("k < 0 && q < 10") == "false");
  CHECK(folded("q < 10 || k >= 0") == "true");
  CHECK(folded("seqlen_q < 500 ? q < k : k < q") == "k<q");
  CHECK(folded("q / k == -1 && k < 0") == "q/k==-1&&false");  // a division by 0 stays in sight
  CHECK(folded("q - k < 3 || k - q > 7 || q - k < 3") == "q-k<3||k-q>7||q-k<3");
}

TEST_CASE("expression: any text is read or refused, and what is read holds") {
  std::vector<std::string> texts;
  for (const auto& entry : std::filesystem::directory_iterator(ORDO_FUZZ_SEEDS "/expression")) {
    std::ifstream file(entry.path());
    texts.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  std::sort(texts.begin(), texts.end());
  REQUIRE(texts.size() >= 15);
  for (const std::string& text : texts) CHECK(fuzz::check_expression(text) == "");
  // Pieces of the seeds, joined, cut and spoilt.
  std::mt19937 random(9);
  const auto below = [&](std::size_t count) { return std::uniform_int_distribution<std::size_t>(0, count - 1)(random); };
  for (int i = 0; i < 20000; ++i) {
    std::string text = texts[below(texts.size())];
    const std::string& other = texts[below(texts.size())];
    text = text.substr(0, below(text.size() + 1)) + other.substr(below(other.size()));
    if (!text.empty() && i % 3 == 0) text[below(text.size())] = static_cast<char>(below(256));
    if (!text.empty() && i % 5 == 0) text.insert(below(text.size()), 1, "()<=&|+-*/%!?:;,.q1"[below(19)]);
    const std::string failure = fuzz::check_expression(text);
    if (!failure.empty()) FAIL_CHECK(failure);
  }
}
