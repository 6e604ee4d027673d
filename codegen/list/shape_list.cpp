// Reads and writes shape lists. TOML is toml++'s; what the keys mean is here.
#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0

#include <fmt/format.h>
#include <llvm/Support/ConvertUTF.h>
#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <unordered_set>

#include "codegen/fields.hpp"
#include "ordo/shape_list.hpp"

namespace ordo {
namespace {

constexpr std::uintmax_t kLargestFile = 16 << 20;
constexpr std::size_t kMostProblems = 1'000'000;

constexpr std::string_view kFamily = "attention-backward", kPlan = "plan";
constexpr std::array<std::string_view, 14> kKeys{
    "batch", "seqlen", "seqlen_q", "seqlen_k",   "heads",        "kv_heads",        "head_dim",
    "mask",  "dtype",  "schedule", "accumulate", "static_shape", "tensor_parallel", "note"};

Error at(const std::string& origin, const toml::source_region& where, const std::string& what) {
  return {ErrorCode::invalid_argument, fmt::format("{}:{}: {}", origin, where.begin.line, what)};
}

/// `text` with what is not ASCII as TOML's escapes: the same inside strings, of no matter in comments, and an error elsewhere.
/// toml++ 3.3 meets such characters outside strings with undefined behaviour (is_non_ascii_horizontal_whitespace of U+00E9, say).
Result<std::string> escaped(std::string_view text, const std::string& origin) {
  constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";
  if (text.starts_with(byte_order_mark)) text.remove_prefix(byte_order_mark.size());
  std::string out;
  out.reserve(text.size());
  const auto* at = reinterpret_cast<const llvm::UTF8*>(text.data());
  const auto* const end = at + text.size();
  while (at != end) {
    llvm::UTF32 code = *at;
    if (code < 0x80) {
      out += static_cast<char>(*at++);
    } else if (llvm::convertUTF8Sequence(&at, end, &code, llvm::strictConversion) == llvm::conversionOK) {
      out += fmt::format("\\U{:08x}", code);
    } else {
      return Error{ErrorCode::invalid_argument,
                   fmt::format("{}:{}: not UTF-8", origin, 1 + std::count(out.begin(), out.end(), '\n'))};
    }
  }
  return out;
}

/// The tables of `[[key]]`, in order; an `[key]` alone is one.
Result<std::vector<const toml::table*>> tables_of(const toml::table& root, std::string_view key, const std::string& origin) {
  std::vector<const toml::table*> tables;
  const toml::node* node = root.get(key);
  if (node == nullptr) return tables;
  if (const toml::table* one = node->as_table()) return std::vector{one};
  if (const toml::array* list = node->as_array()) {
    for (const toml::node& element : *list) {
      if (element.as_table() == nullptr)
        return at(origin, element.source(), fmt::format("'{}' must be a table: [[{}]]", key, key));
      tables.push_back(element.as_table());
    }
    return tables;
  }
  return at(origin, node->source(), fmt::format("'{}' must be a table: [[{}]]", key, key));
}

/// One [[attention-backward]] table.
class ProblemTable {
 public:
  ProblemTable(const toml::table& table, const std::string& origin) : table_(table), origin_(origin) {}

  /// Appends every combination to `problems`.
  Result<void> expand(std::vector<ListedProblem>& problems) {
    for (const auto& [key, value] : table_) {
      if (std::find(kKeys.begin(), kKeys.end(), key.str()) == kKeys.end())
        return at(origin_, value.source(), fmt::format("unknown key '{}'; known are: {}", key.str(), fmt::join(kKeys, ", ")));
    }
    read();
    if (failure_) return *failure_;
    std::size_t count = lengths_.size();
    for (const std::size_t size : {batches_.size(), head_dims_.size(), parallel_.size(), masks_.size(), dtypes_.size(),
                                   schedules_.size(), accumulates_.size()}) {
      count *= size;  // each list is shorter than the file, so this stays far below 2^64 only if checked at every step
      if (count > kMostProblems - std::min(problems.size(), kMostProblems))
        return fail(fmt::format("the list asks for more than {} problems; split it", kMostProblems));
    }
    return combine(problems);
  }

 private:
  Error fail(const std::string& what) const { return at(origin_, table_.source(), what); }

  void remember(Error error) {
    if (!failure_) failure_ = std::move(error);
  }

  /// The values of `key`: one, or a list of at least one; `otherwise` where the key is absent.
  template <class Value, class Read>
  std::vector<Value> values(std::string_view key, std::vector<Value> otherwise, const Read& read) {
    const toml::node* node = table_.get(key);
    if (node == nullptr) return otherwise;
    std::vector<Value> found;
    const auto take = [&](const toml::node& element) {
      Result<Value> value = read(element);
      if (value)
        found.push_back(*value);
      else
        remember(at(origin_, element.source(), fmt::format("{}: {}", key, value.error().message)));
    };
    if (const toml::array* list = node->as_array()) {
      for (const toml::node& element : *list) take(element);
      if (list->empty()) remember(at(origin_, node->source(), fmt::format("{}: an empty list", key)));
    } else {
      take(*node);
    }
    return found;
  }

  std::vector<std::int64_t> integers(std::string_view key, std::vector<std::int64_t> otherwise) {
    return values<std::int64_t>(key, std::move(otherwise), [](const toml::node& node) -> Result<std::int64_t> {
      const toml::value<std::int64_t>* integer = node.as_integer();
      if (integer == nullptr) return Error{ErrorCode::invalid_argument, "a whole number was expected"};
      if (**integer < 1) return Error{ErrorCode::invalid_argument, fmt::format("{} is less than 1", **integer)};
      return **integer;
    });
  }

  template <class Value>
  std::vector<Value> names(std::string_view key, std::vector<Value> otherwise, Result<Value> (*parse)(std::string_view)) {
    return values<Value>(key, std::move(otherwise), [parse](const toml::node& node) -> Result<Value> {
      const toml::value<std::string>* text = node.as_string();
      if (text == nullptr) return Error{ErrorCode::invalid_argument, "a name in quotes was expected"};
      return parse(text->get());
    });
  }

  template <class Value>
  std::vector<std::optional<Value>> optional_names(std::string_view key, Result<Value> (*parse)(std::string_view)) {
    if (!table_.contains(key)) return {std::nullopt};
    std::vector<std::optional<Value>> found;
    for (const Value value : names<Value>(key, {}, parse)) found.push_back(value);
    return found;
  }

  std::int64_t one(std::string_view key, std::int64_t otherwise) {
    const std::vector<std::int64_t> found = integers(key, {otherwise});
    if (found.size() > 1) remember(fail(fmt::format("{} takes one value; write a table for each", key)));
    return found.empty() ? otherwise : found.front();
  }

  void read() {
    if (!table_.contains("heads")) remember(fail("heads is missing"));
    heads_ = one("heads", 1);
    kv_heads_ = one("kv_heads", heads_);
    head_dims_ = integers("head_dim", {128});
    batches_ = integers("batch", {1});
    parallel_ = integers("tensor_parallel", {1});
    masks_ = names<Mask>("mask", {Mask::full}, parse_mask);
    dtypes_ = names<DType>("dtype", {DType::bf16}, parse_dtype);
    schedules_ = optional_names<Schedule>("schedule", parse_schedule);
    accumulates_ = optional_names<Accumulate>("accumulate", parse_accumulate);
    if (const toml::node* flag = table_.get("static_shape")) {
      if (flag->as_boolean() == nullptr)
        remember(at(origin_, flag->source(), "static_shape: true or false was expected"));
      else
        static_shape_ = flag->as_boolean()->get();
    }
    read_lengths();
  }

  void read_lengths() {
    const bool both = table_.contains("seqlen");
    const bool queries = table_.contains("seqlen_q"), keys = table_.contains("seqlen_k");
    if (both == (queries || keys) || queries != keys) {
      remember(fail("give the lengths as seqlen, or as seqlen_q and seqlen_k"));
      return;
    }
    const std::vector<std::int64_t> q = integers(both ? "seqlen" : "seqlen_q", {}), k = both ? q : integers("seqlen_k", {});
    if (q.size() != k.size()) {
      remember(fail(fmt::format("seqlen_q has {} values and seqlen_k {}; they are pairs", q.size(), k.size())));
      return;
    }
    for (std::size_t i = 0; i < q.size(); ++i) lengths_.emplace_back(q[i], k[i]);
  }

  /// The heads of one of `ranks` ranks.
  Result<void> split(AttentionBackward& problem, std::int64_t ranks) const {
    if (heads_ % ranks != 0) return fail(fmt::format("tensor_parallel = {} does not divide heads = {}", ranks, heads_));
    if (kv_heads_ % ranks != 0 && ranks % kv_heads_ != 0)
      return fail(fmt::format("tensor_parallel = {} and kv_heads = {}: neither divides the other", ranks, kv_heads_));
    problem.heads = heads_ / ranks;
    problem.kv_heads = std::max<std::int64_t>(kv_heads_ / ranks, 1);
    return {};
  }

  Result<void> combine(std::vector<ListedProblem>& problems) const {
    for (const std::int64_t ranks : parallel_) {
      ListedProblem listed;
      AttentionBackward& p = listed.problem;
      listed.request.static_shape = static_shape_;
      if (auto ok = split(p, ranks); !ok) return ok;
      for (const std::int64_t head_dim : head_dims_)
        for (const DType dtype : dtypes_)
          for (const Mask mask : masks_)
            for (const auto& schedule : schedules_)
              for (const auto& accumulate : accumulates_)
                for (const std::int64_t batch : batches_)
                  for (const auto& [q, k] : lengths_) {
                    p.head_dim = head_dim;
                    p.dtype = dtype;
                    p.mask = mask;
                    listed.request.schedule = schedule;
                    listed.request.accumulate = accumulate;
                    p.batch = batch;
                    p.seqlen_q = q;
                    p.seqlen_k = k;
                    if (auto valid = p.validate(); !valid) return fail(valid.error().message);
                    problems.push_back(listed);
                  }
    }
    return {};
  }

  const toml::table& table_;
  const std::string& origin_;
  std::optional<Error> failure_;

  std::int64_t heads_ = 1, kv_heads_ = 1;
  std::vector<std::int64_t> head_dims_, batches_, parallel_;
  std::vector<std::pair<std::int64_t, std::int64_t>> lengths_;
  std::vector<Mask> masks_;
  std::vector<DType> dtypes_;
  std::vector<std::optional<Schedule>> schedules_;
  std::vector<std::optional<Accumulate>> accumulates_;
  bool static_shape_ = false;
};

/// Appends the plan of a [[plan]] table to those of its kind.
Result<void> add_plan(const toml::table& table, const std::string& origin, ShapeList& list) {
  for (const auto& [key, value] : table) {
    if (key.str() != "text" && key.str() != "note")
      return at(origin, value.source(), fmt::format("unknown key '{}'; a plan has text, and may have a note", key.str()));
  }
  const toml::node* text = table.get("text");
  if (text == nullptr || text->as_string() == nullptr) return at(origin, table.source(), "a plan needs its text, in quotes");
  const std::string& words = text->as_string()->get();
  const auto add = [&](const auto& plan, auto& plans) -> Result<void> {
    if (!plan) return at(origin, text->source(), plan.error().message);
    plans.push_back(*plan);
    return {};
  };
  if (words.starts_with("overlap-plan")) return add(parse_overlap_plan(words), list.overlap_plans);
  return add(parse_plan(words), list.plans);
}

std::string text_of(const ListedProblem& listed) {
  const PlanRequest& request = listed.request;
  return fmt::format("{} {} {} {}", to_text(listed.problem), request.schedule ? to_string(*request.schedule) : "",
                     request.accumulate ? to_string(*request.accumulate) : "", request.static_shape);
}

std::string text_of(const Plan& plan) { return to_text(plan); }
std::string text_of(const OverlapPlan& plan) { return to_text(plan); }

/// Drops what came before already.
template <class Item>
void keep_first(std::vector<Item>& items) {
  std::unordered_set<std::string> seen;
  std::erase_if(items, [&](const Item& item) { return !seen.insert(text_of(item)).second; });
}

}  // namespace

Result<ShapeList> parse_shape_list(std::string_view text, const std::string& origin) {
  const Result<std::string> ascii = escaped(text, origin);
  if (!ascii) return ascii.error();
  const toml::parse_result parsed = toml::parse(std::string_view(*ascii), origin);
  if (!parsed) return at(origin, parsed.error().source(), std::string(parsed.error().description()));
  const toml::table& root = parsed.table();
  ShapeList list;
  for (const auto& [key, value] : root) {
    if (key.str() == "name" && value.is_string())
      list.name = value.as_string()->get();
    else if (key.str() != kFamily && key.str() != kPlan && !(key.str() == "note" && value.is_string()))
      return at(origin, value.source(),
                fmt::format("unknown key '{}', or not of its type; a list has name, note, [[{}]] and [[{}]]", key.str(), kFamily,
                            kPlan));
  }
  const auto families = tables_of(root, kFamily, origin);
  if (!families) return families.error();
  for (const toml::table* table : *families) {
    if (auto ok = ProblemTable(*table, origin).expand(list.problems); !ok) return ok.error();
  }
  const auto plans = tables_of(root, kPlan, origin);
  if (!plans) return plans.error();
  for (const toml::table* table : *plans) {
    if (auto ok = add_plan(*table, origin, list); !ok) return ok.error();
  }
  if (list.problems.empty() && list.plans.empty() && list.overlap_plans.empty())
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{}: the list is empty; it needs [[{}]] or [[{}]]", origin, kFamily, kPlan)};
  keep_first(list.problems);
  keep_first(list.plans);
  keep_first(list.overlap_plans);
  return list;
}

Result<ShapeList> read_shape_list(const std::string& path) {
  std::error_code reason;
  if (const auto size = std::filesystem::file_size(path, reason); reason || size > kLargestFile)
    return Error{ErrorCode::io,
                 fmt::format("The list {} cannot be read: {}.", path, reason ? reason.message() : "larger than 16 MiB")};
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file) return Error{ErrorCode::io, fmt::format("The list {} cannot be read.", path)};
  return parse_shape_list(text, path);
}

namespace {

/// A TOML basic string on one line.
std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
  }
  return out + '"';
}

}  // namespace

std::string to_toml(const ShapeList& list) {
  std::string out;
  if (!list.name.empty()) out += fmt::format("name = {}\n", toml_string(list.name));
  for (const ListedProblem& listed : list.problems) {
    const AttentionBackward& p = listed.problem;
    out += fmt::format(
        "\n[[{}]]\nbatch = {}\nseqlen_q = {}\nseqlen_k = {}\nheads = {}\nkv_heads = {}\nhead_dim = {}\nmask = {}\ndtype = "
        "\"{}\"\n",
        kFamily, p.batch, p.seqlen_q, p.seqlen_k, p.heads, p.kv_heads, p.head_dim, toml_string(to_string(p.mask)),
        to_string(p.dtype));
    if (listed.request.schedule) out += fmt::format("schedule = \"{}\"\n", to_string(*listed.request.schedule));
    if (listed.request.accumulate) out += fmt::format("accumulate = \"{}\"\n", to_string(*listed.request.accumulate));
    if (listed.request.static_shape) out += "static_shape = true\n";
  }
  const auto write = [&](const std::string& text) { out += fmt::format("\n[[{}]]\ntext = {}\n", kPlan, toml_string(text)); };
  for (const Plan& plan : list.plans) write(to_text(plan));
  for (const OverlapPlan& plan : list.overlap_plans) write(to_text(plan));
  return out;
}

}  // namespace ordo
