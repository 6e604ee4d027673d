#include "codegen/expression/host_function.hpp"

#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/Support/TargetSelect.h>

#include <fmt/format.h>

#include <map>
#include <string>

#include "codegen/expression/ir.hpp"

namespace ordo::expression {
namespace {

constexpr const char* kValue = "ordo_expression_value";
constexpr const char* kRow = "ordo_expression_row";

Error jit_error(llvm::Error error) {
  return {ErrorCode::internal,
          fmt::format("LLVM cannot compile an expression for this machine: {}", llvm::toString(std::move(error)))};
}

llvm::Function* declare(llvm::Module& module, const char* name, llvm::Type* result, const std::vector<llvm::Type*>& parameters) {
  auto* function =
      llvm::Function::Create(llvm::FunctionType::get(result, parameters, false), llvm::Function::ExternalLinkage, name, module);
  function->setDoesNotThrow();  // so that there are no unwind tables to register
  return function;
}

/// Loads variables from the array of all of them, each once.
class Loads {
 public:
  Loads(llvm::IRBuilder<>& builder, llvm::Value* values) : builder_(builder), values_(values) {}
  llvm::Value* operator()(Variable variable) {
    llvm::Value*& loaded = loaded_[variable];
    if (loaded == nullptr) {
      llvm::Value* at = builder_.CreateConstInBoundsGEP1_32(builder_.getInt32Ty(), values_, static_cast<unsigned>(variable));
      loaded = builder_.CreateLoad(builder_.getInt32Ty(), at);
    }
    return loaded;
  }

 private:
  llvm::IRBuilder<>& builder_;
  llvm::Value* values_;
  std::map<Variable, llvm::Value*> loaded_;
};

void add_value_function(llvm::Module& module, const Expression& expression) {
  llvm::LLVMContext& context = module.getContext();
  llvm::Function* function = declare(module, kValue, llvm::Type::getInt32Ty(context), {llvm::PointerType::getUnqual(context)});
  llvm::IRBuilder<> builder(llvm::BasicBlock::Create(context, "entry", function));
  Loads loads(builder, function->getArg(0));
  llvm::Value* value = build_value(builder, expression, [&](Variable variable) { return loads(variable); });
  if (expression.root().type == Type::boolean) value = builder.CreateZExt(value, builder.getInt32Ty());
  if (expression.root().type == Type::floating) value = builder.CreateBitCast(value, builder.getInt32Ty());
  builder.CreateRet(value);
}

/// for (i = 0; i < count; ++i) out[i] = expression at q = first_q + i
void add_row_function(llvm::Module& module, const Expression& expression) {
  llvm::LLVMContext& context = module.getContext();
  llvm::Type* pointer = llvm::PointerType::getUnqual(context);
  llvm::Type* integer = llvm::Type::getInt32Ty(context);
  llvm::Function* function = declare(module, kRow, llvm::Type::getVoidTy(context), {pointer, integer, integer, pointer});
  llvm::Value *first = function->getArg(1), *count = function->getArg(2), *out = function->getArg(3);
  function->getArg(3)->addAttr(llvm::Attribute::NoAlias);
  auto* entry = llvm::BasicBlock::Create(context, "entry", function);
  auto* body = llvm::BasicBlock::Create(context, "body", function);
  auto* end = llvm::BasicBlock::Create(context, "end", function);
  llvm::IRBuilder<> before(entry);
  Loads loads(before, function->getArg(0));
  for (const Variable variable : variables_of(Scope::mask))
    if (variable != Variable::q && expression.uses(variable)) loads(variable);
  before.CreateCondBr(before.CreateICmpSGT(count, before.getInt32(0)), body, end);

  llvm::IRBuilder<> builder(body);
  llvm::PHINode* i = builder.CreatePHI(integer, 2);
  llvm::Value* q = builder.CreateNSWAdd(first, i);
  llvm::Value* value =
      build_value(builder, expression, [&](Variable variable) { return variable == Variable::q ? q : loads(variable); });
  builder.CreateStore(builder.CreateZExt(value, builder.getInt8Ty()), builder.CreateInBoundsGEP(builder.getInt8Ty(), out, i));
  llvm::Value* next = builder.CreateNSWAdd(i, builder.getInt32(1));
  i->addIncoming(builder.getInt32(0), entry);
  i->addIncoming(next, body);
  builder.CreateCondBr(builder.CreateICmpSLT(next, count), body, end);
  llvm::IRBuilder<>(end).CreateRetVoid();
}

/// A JIT for this processor that links to nothing.
Result<std::shared_ptr<llvm::orc::LLJIT>> make_jit() {
  static const bool initialised = !llvm::InitializeNativeTarget() && !llvm::InitializeNativeTargetAsmPrinter();
  if (!initialised) return Error{ErrorCode::internal, "this build of LLVM has no code generator for this machine"};
  auto jit =
      llvm::orc::LLJITBuilder().setLinkProcessSymbolsByDefault(false).setPlatformSetUp(llvm::orc::setUpInactivePlatform).create();
  if (!jit) return jit_error(jit.takeError());
  return std::shared_ptr<llvm::orc::LLJIT>(std::move(*jit));
}

}  // namespace

Result<HostFunction> HostFunction::compile(const Expression& whole, const Domain& known) {
  auto jit = make_jit();
  if (!jit) return jit.error();
  const Expression expression = fold(whole, known);
  auto context = std::make_unique<llvm::LLVMContext>();
  auto module = std::make_unique<llvm::Module>("expression", *context);
  module->setDataLayout((*jit)->getDataLayout());
  module->setTargetTriple((*jit)->getTargetTriple().str());
  add_value_function(*module, expression);
  if (expression.root().type == Type::boolean) add_row_function(*module, expression);
  if (auto optimised = verify_and_optimise(*module); !optimised) return optimised.error();
  if (auto error = (*jit)->addIRModule({std::move(module), std::move(context)})) return jit_error(std::move(error));

  HostFunction out;
  auto value = (*jit)->lookup(kValue);
  if (!value) return jit_error(value.takeError());
  out.value_ = value->toPtr<std::int32_t(const std::int32_t*)>();
  if (whole.root().type == Type::boolean) {
    auto row = (*jit)->lookup(kRow);
    if (!row) return jit_error(row.takeError());
    out.row_ = row->toPtr<void(const std::int32_t*, std::int32_t, std::int32_t, std::uint8_t*)>();
  }
  out.code_ = *std::move(jit);
  return out;
}

}  // namespace ordo::expression
