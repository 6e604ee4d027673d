#include "runtime/cubin.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include <llvm/BinaryFormat/ELF.h>
#include <llvm/Object/ELF.h>
#include <llvm/Object/ELFTypes.h>
#include <llvm/Support/Error.h>

// The format is not documented. What is used here was read off cubins for sm_90a made by NVRTC 12.4, 12.8, 12.9, 13.0 and 13.5,
// and tests hold it against what ptxas prints for the same kernels:
//  - OSABI 0x41 (CUDA 13): SM in bits 8-15 of e_flags. OSABI 0x33 (CUDA 12): in bits 0-7.
//  - A kernel is an STT_FUNC symbol with bit 0x10 of st_other set; other functions are device functions.
//  - `.nv.info` holds records about symbols, `.nv.info.KERNEL` those of one kernel: u8 format, u8 attribute, u16 value or size,
//  and for
//    format 4 as many bytes of payload as the size says.
//  - Barriers: attribute 0x4c in CUDA 13; bits 20-26 of the text section's sh_flags in CUDA 12.
//  - `.nv.shared.KERNEL` (NOBITS) is the static shared memory after the first 1024 bytes, which the system keeps from sm_80 on.

namespace ordo {
namespace {

using Elf = llvm::object::ELF64LE;
using File = llvm::object::ELFFile<Elf>;
using Bytes = llvm::ArrayRef<std::uint8_t>;

constexpr std::uint8_t osabi_cuda12 = 0x33, osabi_cuda13 = 0x41;
constexpr std::uint8_t symbol_is_kernel = 0x10;
constexpr std::uint32_t section_type_info = 0x70000000;
constexpr std::uint64_t reserved_shared_bytes = 1024;
constexpr std::size_t longest_name = 4096;         // or many headers sharing one huge name cost gigabytes
constexpr std::uint64_t largest_count = 1u << 30;  // of any resource: more than hardware has, and an int holds it

enum Attribute : std::uint8_t {
  attribute_max_threads = 0x05,
  attribute_frame_size = 0x11,
  attribute_parameter_bytes = 0x19,
  attribute_registers = 0x2f,
  attribute_barriers = 0x4c,
};

Error bad(std::string_view what) { return {ErrorCode::bad_cubin, fmt::format("Not a whole cubin: {}.", what)}; }

Error bad(std::string_view what, llvm::Error error) { return bad(fmt::format("{}: {}", what, llvm::toString(std::move(error)))); }

std::uint32_t read_u32(Bytes bytes, std::size_t offset) {
  return std::uint32_t{bytes[offset]} | std::uint32_t{bytes[offset + 1]} << 8 | std::uint32_t{bytes[offset + 2]} << 16 |
         std::uint32_t{bytes[offset + 3]} << 24;
}

/// What may appear in messages and JSON.
bool is_plain_name(llvm::StringRef name) {
  return !name.empty() && name.size() <= longest_name &&
         std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c <= '~'; });
}

struct Record {
  std::uint8_t attribute;
  std::uint32_t value;  ///< formats 2 and 3
  Bytes payload;        ///< format 4
};

/// The records of one info section.
Result<std::vector<Record>> read_records(std::string_view section, Bytes bytes) {
  std::vector<Record> records;
  std::size_t at = 0;
  while (at < bytes.size()) {
    if (bytes.size() - at < 4) return bad(fmt::format("{} ends inside a record, at byte {} of {}", section, at, bytes.size()));
    const std::uint8_t format = bytes[at];
    Record record{bytes[at + 1], 0, {}};
    const std::uint32_t word = std::uint32_t{bytes[at + 2]} | std::uint32_t{bytes[at + 3]} << 8;
    at += 4;
    switch (format) {
      case 1:
        break;  // no value
      case 2:
        record.value = word & 0xff;
        break;
      case 3:
        record.value = word;
        break;
      case 4:
        if (word > bytes.size() - at) {
          return bad(fmt::format("{} has a record of {} bytes at byte {}, of which only {} are there", section, word, at,
                                 bytes.size() - at));
        }
        record.payload = bytes.slice(at, word);
        at += word;
        break;
      default:
        return bad(fmt::format("{} has a record of unknown format {} at byte {}", section, format, at - 4));
    }
    records.push_back(record);
  }
  return records;
}

class Reader {
 public:
  explicit Reader(File file) : file_(std::move(file)) {}

  Result<CubinInfo> read() {
    for (auto step : {&Reader::check_header, &Reader::read_sections, &Reader::read_symbols, &Reader::read_resources}) {
      if (Result<void> ok = (this->*step)(); !ok) return ok.error();
    }
    CubinInfo info{sm_, {}};
    for (auto& [name, kernel] : kernels_) info.kernels.push_back(std::move(kernel));
    return info;
  }

 private:
  Result<void> check_header() {
    const auto& header = file_.getHeader();
    if (!header.checkMagic() || header.getFileClass() != llvm::ELF::ELFCLASS64 ||
        header.getDataEncoding() != llvm::ELF::ELFDATA2LSB) {
      return bad("it is no 64-bit little-endian ELF file");
    }
    if (header.e_machine != llvm::ELF::EM_CUDA)
      return bad(fmt::format("ELF machine {}, not {} (CUDA)", header.e_machine, +llvm::ELF::EM_CUDA));
    osabi_ = header.e_ident[llvm::ELF::EI_OSABI];
    if (osabi_ != osabi_cuda12 && osabi_ != osabi_cuda13) {
      return bad(
          fmt::format("ELF OSABI {:#x}, of neither CUDA 12 ({:#x}) nor CUDA 13 ({:#x})", osabi_, osabi_cuda12, osabi_cuda13));
    }
    if (header.e_type != llvm::ELF::ET_EXEC) return bad(fmt::format("ELF type {}, not a linked executable", header.e_type));
    sm_ = static_cast<int>(osabi_ == osabi_cuda13 ? header.e_flags >> 8 & 0xff : header.e_flags & 0xff);
    // The program headers may be the last thing in the file: a truncation must not pass because nothing of them is used here.
    auto programs = file_.program_headers();
    if (!programs) return bad("program headers", programs.takeError());
    for (const auto& program : *programs) {
      if (program.p_offset > file_.getBufSize() || program.p_filesz > file_.getBufSize() - program.p_offset) {
        return bad("a segment passes the end of the file");
      }
    }
    return {};
  }

  Result<void> read_sections() {
    auto sections = file_.sections();
    if (!sections) return bad("section headers", sections.takeError());
    sections_ = *sections;
    for (std::size_t i = 0; i < sections_.size(); ++i) {
      auto name = file_.getSectionName(sections_[i]);
      if (!name) return bad(fmt::format("name of section {}", i), name.takeError());
      if (sections_[i].sh_type == llvm::ELF::SHT_NULL) continue;
      if (sections_[i].sh_type != llvm::ELF::SHT_NOBITS) {
        auto contents = file_.getSectionContents(sections_[i]);
        if (!contents) return bad(fmt::format("section {}", i), contents.takeError());
      }
      if (name->size() > longest_name) return bad(fmt::format("the name of section {} has {} bytes", i, name->size()));
      by_name_.try_emplace(std::string_view{name->data(), name->size()}, i);
    }
    return {};
  }

  Result<void> read_symbols() {
    const auto found = by_name_.find(".symtab");
    if (found == by_name_.end()) return bad("it has no symbol table");
    const auto& table = sections_[found->second];
    auto symbols = file_.symbols(&table);
    if (!symbols) return bad("symbol table", symbols.takeError());
    auto names = file_.getStringTableForSymtab(table);
    if (!names) return bad("symbol names", names.takeError());
    for (std::size_t i = 0; i < symbols->size(); ++i) {
      const auto& symbol = (*symbols)[i];
      if (symbol.getType() != llvm::ELF::STT_FUNC || (symbol.st_other & symbol_is_kernel) == 0) continue;
      auto name = symbol.getName(*names);
      if (!name) return bad(fmt::format("name of symbol {}", i), name.takeError());
      if (!is_plain_name(*name)) return bad(fmt::format("the name of symbol {} is empty, too long or not printable", i));
      if (symbol.st_shndx >= sections_.size())
        return bad(fmt::format("kernel {} lies in section {} of {}", name->str(), symbol.st_shndx, sections_.size()));
      const auto& text = sections_[symbol.st_shndx];
      if (text.sh_type != llvm::ELF::SHT_PROGBITS || symbol.st_size == 0 || symbol.st_value > text.sh_size ||
          symbol.st_size > text.sh_size - symbol.st_value) {
        return bad(fmt::format("kernel {} does not lie inside its section", name->str()));
      }
      CubinKernel kernel;
      kernel.symbol = name->str();
      if (osabi_ == osabi_cuda12) kernel.barriers = static_cast<int>(text.sh_flags >> 20 & 0x7f);
      if (!kernels_.emplace(i, std::move(kernel)).second) return bad("a symbol appears twice");
    }
    if (kernels_.empty()) return bad("it holds no kernel");
    return {};
  }

  Result<void> read_resources() {
    auto records = records_of(".nv.info");
    if (!records) return records.error();
    if (!*records) return bad("it has no .nv.info");
    for (const Record& record : **records) {
      if (record.attribute != attribute_registers && record.attribute != attribute_frame_size) continue;
      if (record.payload.size() != 8) return bad(fmt::format("a record of .nv.info has {} bytes, not 8", record.payload.size()));
      const auto kernel = kernels_.find(read_u32(record.payload, 0));
      if (kernel == kernels_.end()) continue;  // a device function
      int& field = record.attribute == attribute_registers ? kernel->second.registers : kernel->second.stack_bytes;
      if (Result<void> ok = store(read_u32(record.payload, 4), field, kernel->second, "register count or frame size"); !ok)
        return ok;
    }
    for (auto& [index, kernel] : kernels_) {
      if (kernel.registers == 0) return bad(fmt::format(".nv.info does not state the registers of kernel {}", kernel.symbol));
      if (Result<void> ok = read_kernel_records(kernel); !ok) return ok;
      if (Result<void> ok = read_shared_bytes(kernel); !ok) return ok;
    }
    return {};
  }

  Result<void> read_kernel_records(CubinKernel& kernel) {
    auto records = records_of(".nv.info." + kernel.symbol);
    if (!records) return records.error();
    if (!*records) return bad(fmt::format("kernel {} has no .nv.info section of its own", kernel.symbol));
    for (const Record& record : **records) {
      switch (record.attribute) {
        case attribute_parameter_bytes:
          kernel.parameter_bytes = static_cast<int>(record.value);
          break;
        case attribute_barriers:
          kernel.barriers = static_cast<int>(record.value);
          break;
        case attribute_max_threads: {
          if (record.payload.size() != 12)
            return bad(fmt::format("MAX_THREADS of kernel {} has {} bytes, not 12", kernel.symbol, record.payload.size()));
          std::uint64_t threads = 1;
          for (std::size_t axis = 0; axis < 3; ++axis) {
            threads *= std::min<std::uint64_t>(read_u32(record.payload, 4 * axis), 1u << 20);  // the product stays below 2^60
          }
          if (Result<void> ok = store(threads, kernel.max_threads, kernel, "thread limit"); !ok) return ok;
          break;
        }
        default:
          break;
      }
    }
    return {};
  }

  Result<void> read_shared_bytes(CubinKernel& kernel) {
    const auto found = by_name_.find(".nv.shared." + kernel.symbol);
    if (found == by_name_.end()) return {};
    const std::uint64_t size = sections_[found->second].sh_size;
    const std::uint64_t reserved = sm_ >= 80 ? reserved_shared_bytes : 0;
    return store(size > reserved ? size - reserved : 0, kernel.static_shared_bytes, kernel, "shared memory");
  }

  Result<void> store(std::uint64_t value, int& field, const CubinKernel& kernel, std::string_view what) {
    if (value > largest_count) return bad(fmt::format("{} of kernel {} is {}", what, kernel.symbol, value));
    field = static_cast<int>(value);
    return {};
  }

  /// The records of a section, or nullopt when there is none of that name.
  Result<std::optional<std::vector<Record>>> records_of(const std::string& name) {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) return std::optional<std::vector<Record>>{};
    if (sections_[found->second].sh_type != section_type_info)
      return bad(fmt::format("{} has section type {:#x}", name, +sections_[found->second].sh_type));
    auto contents = file_.getSectionContents(sections_[found->second]);
    if (!contents) return bad(name, contents.takeError());
    Result<std::vector<Record>> records = read_records(name, *contents);
    if (!records) return records.error();
    return std::optional{*std::move(records)};
  }

  File file_;
  std::uint8_t osabi_ = 0;
  int sm_ = 0;
  Elf::ShdrRange sections_;
  std::map<std::string_view, std::size_t> by_name_;
  std::map<std::size_t, CubinKernel> kernels_;  ///< by symbol index
};

}  // namespace

Result<CubinInfo> read_cubin(std::span<const std::byte> bytes) {
  auto file = File::create({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (!file) return bad("ELF header", file.takeError());
  return Reader(*std::move(file)).read();
}

}  // namespace ordo
