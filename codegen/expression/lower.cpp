#include "codegen/expression/lower.hpp"

#include <llvm/IR/ConstantRange.h>
#include <llvm/Support/raw_ostream.h>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "codegen/expression/ir.hpp"

namespace ordo::expression {
namespace {

constexpr const char* kFunction = "value";

/// The optimised function in its module.
struct Lowered {
  std::unique_ptr<llvm::LLVMContext> context = std::make_unique<llvm::LLVMContext>();
  std::unique_ptr<llvm::Module> module = std::make_unique<llvm::Module>("expression", *context);

  [[nodiscard]] const llvm::Function& function() const { return *module->getFunction(kFunction); }
};

/// A parameter for every variable that is left, with its interval for the optimiser.
llvm::Function* declare(Lowered& to, const Expression& expression, const Domain& known, std::vector<Variable>& parameters) {
  llvm::LLVMContext& context = *to.context;
  for (std::size_t i = 0; i < kVariables; ++i) {
    if (expression.uses(static_cast<Variable>(i))) parameters.push_back(static_cast<Variable>(i));
  }
  const std::vector<llvm::Type*> types(parameters.size(), type_of(context, Type::integer));
  auto* signature = llvm::FunctionType::get(type_of(context, expression.root().type), types, false);
  auto* function = llvm::Function::Create(signature, llvm::Function::ExternalLinkage, kFunction, *to.module);
  function->setDoesNotThrow();
  function->setDoesNotAccessMemory();
  for (unsigned i = 0; i < parameters.size(); ++i) {
    const std::string_view name = to_string(parameters[i]);
    function->getArg(i)->setName(llvm::StringRef(name.data(), name.size()));
    const Interval interval = known[parameters[i]];
    if (interval == kAnyInteger) continue;
    const auto bound = [](std::int64_t x) { return llvm::APInt(32, static_cast<std::uint64_t>(x), true); };
    function->getArg(i)->addAttr(llvm::Attribute::get(
        context, llvm::Attribute::Range, llvm::ConstantRange::getNonEmpty(bound(interval.low), bound(interval.high) + 1)));
  }
  return function;
}

Result<Lowered> lower(const Expression& whole, const Domain& known) {
  const Expression expression = fold(whole, known);
  Lowered out;
  std::vector<Variable> parameters;
  llvm::Function* function = declare(out, expression, known, parameters);
  llvm::IRBuilder<> builder(llvm::BasicBlock::Create(*out.context, "entry", function));
  builder.CreateRet(build_value(builder, expression, [&](Variable variable) {
    const auto at = std::find(parameters.begin(), parameters.end(), variable);
    return function->getArg(static_cast<unsigned>(at - parameters.begin()));
  }));
  if (auto optimised = verify_and_optimise(*out.module); !optimised) return optimised.error();
  return out;
}

/// Registers of one value.
struct Width {
  int words = 0, predicates = 0;
};
Width width_of(const llvm::Value& value) {
  const llvm::Type* type = value.getType();
  if (type->isVoidTy()) return {};
  if (type->isIntegerTy(1)) return {0, 1};
  return {static_cast<int>((type->getPrimitiveSizeInBits() + 31) / 32), 0};
}

}  // namespace

Result<LiveRegisters> live_registers(const Expression& expression, const Domain& known) {
  auto lowered = lower(expression, known);
  if (!lowered) return lowered.error();
  const llvm::Function& function = lowered->function();
  // Expressions have no loops and choose by `select`, so one block is all there is.
  if (function.size() != 1) return Error{ErrorCode::internal, "the IR of an expression has more than one block"};
  const llvm::BasicBlock& block = function.getEntryBlock();

  LiveRegisters out;
  std::map<const llvm::Value*, int> last_use;  // by number of the instruction
  int number = 0;
  for (const llvm::Instruction& instruction : block) {
    for (const llvm::Use& use : instruction.operands()) last_use[use.get()] = number;
    ++number;
  }
  out.instructions = number - 1;
  Width live;
  const auto start = [&](const llvm::Value& value) {
    if (last_use.count(&value) == 0) return;
    live.words += width_of(value).words;
    live.predicates += width_of(value).predicates;
  };
  const auto note_peak = [&] {
    out.words = std::max(out.words, live.words);
    out.predicates = std::max(out.predicates, live.predicates);
  };
  for (const llvm::Argument& argument : function.args()) {
    out.inputs += last_use.count(&argument) > 0 ? 1 : 0;
    start(argument);
  }
  note_peak();
  number = 0;
  for (const llvm::Instruction& instruction : block) {
    // A result may take the register of an operand that ends here.
    std::vector<const llvm::Value*> ended;
    for (const llvm::Use& use : instruction.operands()) {
      const llvm::Value* value = use.get();
      if ((llvm::isa<llvm::Instruction>(value) || llvm::isa<llvm::Argument>(value)) && last_use[value] == number &&
          std::find(ended.begin(), ended.end(), value) == ended.end()) {
        ended.push_back(value);
        live.words -= width_of(*value).words;
        live.predicates -= width_of(*value).predicates;
      }
    }
    start(instruction);
    note_peak();
    ++number;
  }
  return out;
}

Result<std::string> ir_text(const Expression& expression, const Domain& known) {
  auto lowered = lower(expression, known);
  if (!lowered) return lowered.error();
  std::string text;
  llvm::raw_string_ostream stream(text);
  stream << lowered->function();
  return text;
}

}  // namespace ordo::expression
