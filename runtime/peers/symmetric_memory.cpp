#include "runtime/peers/symmetric_memory.hpp"

#include <fmt/format.h>

#include <array>
#include <cstring>

namespace ordo::peers {
namespace {

// A rank's verdict on a step, as it travels.
struct Verdict {
  std::uint32_t failed = 0;
  std::uint32_t code = 0;
  std::array<char, 504> message{};
};

CUmemAllocationProp device_memory(int device) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = device;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return prop;
}

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

Result<void> agree_on(const Links& links, const Result<void>& mine, Deadline deadline) {
  Verdict verdict;
  if (!mine) {
    verdict.failed = 1;
    verdict.code = static_cast<std::uint32_t>(mine.error().code);
    const std::string& text = mine.error().message;
    std::memcpy(verdict.message.data(), text.data(), std::min(text.size(), verdict.message.size() - 1));
  }
  std::vector<Verdict> all(static_cast<std::size_t>(links.ranks()));
  if (auto gathered = links.all_gather(&verdict, sizeof verdict, all.data(), deadline); !gathered) return mine ? gathered : mine;
  for (int rank = 0; rank < links.ranks(); ++rank) {
    const Verdict& of = all[static_cast<std::size_t>(rank)];
    if (of.failed == 0) continue;
    const std::string text(of.message.data(), ::strnlen(of.message.data(), of.message.size()));
    return Error{of.code <= static_cast<std::uint32_t>(ErrorCode::internal) ? static_cast<ErrorCode>(of.code) : ErrorCode::io,
                 fmt::format("rank {}: {}", rank, text)};
  }
  return {};
}

// Physical memory, its address range and the mapping between them.
class SymmetricMemory::VmmMapping : public Mapping {
 public:
  explicit VmmMapping(const Driver& driver) : d_(driver) {}
  VmmMapping(const VmmMapping&) = delete;
  VmmMapping& operator=(const VmmMapping&) = delete;
  ~VmmMapping() override {
    if (mapped_) d_.memUnmap(address_, bytes_);
    if (address_ != 0) d_.memAddressFree(address_, bytes_);
    if (handle_ != 0) d_.memRelease(handle_);
  }

  Result<void> create(int device, std::size_t bytes) {
    const CUmemAllocationProp prop = device_memory(device);
    return d_.check(d_.memCreate(&handle_, bytes, &prop, 0), fmt::format("cuMemCreate of {} bytes", bytes));
  }
  Result<void> import(const FileDescriptor& fd) {
    void* handle = reinterpret_cast<void*>(static_cast<std::intptr_t>(fd.get()));  // as the function wants it
    return d_.check(d_.memImportFromShareableHandle(&handle_, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                    "cuMemImportFromShareableHandle");
  }
  Result<FileDescriptor> export_fd() const {
    int fd = -1;
    if (auto ok = d_.check(d_.memExportToShareableHandle(&fd, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                           "cuMemExportToShareableHandle");
        !ok) {
      return ok.error();
    }
    return FileDescriptor(fd);
  }
  // Readable and writable by `device`. The handle is not needed after that: the mapping keeps the memory.
  Result<CUdeviceptr> map(int device, std::size_t bytes) {
    bytes_ = bytes;
    if (auto ok = d_.check(d_.memAddressReserve(&address_, bytes, 0, 0, 0), "cuMemAddressReserve"); !ok) return ok.error();
    if (auto ok = d_.check(d_.memMap(address_, bytes, 0, handle_, 0), "cuMemMap"); !ok) return ok.error();
    mapped_ = true;
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (auto ok = d_.check(d_.memSetAccess(address_, bytes, &access, 1), fmt::format("cuMemSetAccess for device {}", device));
        !ok)
      return ok.error();
    d_.memRelease(std::exchange(handle_, 0));
    return address_;
  }

 private:
  const Driver& d_;
  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr address_ = 0;
  std::size_t bytes_ = 0;
  bool mapped_ = false;
};

// Memory of cuMemAlloc.
class SymmetricMemory::OwnedMapping : public Mapping {
 public:
  OwnedMapping(const Driver& driver, CUdeviceptr data) : d_(driver), data_(data) {}
  OwnedMapping(const OwnedMapping&) = delete;
  OwnedMapping& operator=(const OwnedMapping&) = delete;
  ~OwnedMapping() override { d_.memFree(data_); }

 private:
  const Driver& d_;
  CUdeviceptr data_;
};

// Memory of another process, opened by its cuIpc handle.
class SymmetricMemory::IpcMapping : public Mapping {
 public:
  IpcMapping(const Driver& driver, CUdeviceptr data) : d_(driver), data_(data) {}
  IpcMapping(const IpcMapping&) = delete;
  IpcMapping& operator=(const IpcMapping&) = delete;
  ~IpcMapping() override { d_.ipcCloseMemHandle(data_); }

 private:
  const Driver& d_;
  CUdeviceptr data_;
};

// The steps of allocate(): each is done here, and then agreed on by all ranks before the next begins.
class SymmetricMemory::Maker {
 public:
  Maker(const SharingContext& context, std::size_t bytes)
      : c_(context), d_(*context.driver), links_(*context.links), deadline_(Deadline::after(context.timeout)) {
    out_.rank_ = links_.rank();
    out_.bytes_ = bytes;
    out_.addresses_.assign(static_cast<std::size_t>(links_.ranks()), 0);
  }

  Result<SymmetricMemory> make(PeerTransport transport) {
    const auto made = transport == PeerTransport::vmm   ? share_vmm()
                      : transport == PeerTransport::ipc ? share_ipc()
                                                        : agreed(allocate());
    if (!made) return made.error();
    if (auto zeroed = agreed(zero()); !zeroed) return zeroed.error();
    return std::move(out_);
  }

 private:
  Result<void> agreed(const Result<void>& mine) const { return agree_on(links_, mine, deadline_); }
  CUdeviceptr& address(int rank) { return out_.addresses_[static_cast<std::size_t>(rank)]; }

  Result<void> share_vmm() {
    if (!links_.one_host()) return Error{ErrorCode::unsupported, "the ranks are on several hosts"};
    FileDescriptor exported;
    if (auto made = agreed(create_vmm(exported)); !made) return made;
    return agreed(map_peers(exported));
  }

  Result<void> create_vmm(FileDescriptor& exported) {
    const CUmemAllocationProp prop = device_memory(c_.device);
    std::size_t unit = 0;
    if (auto ok = d_.check(d_.memGetAllocationGranularity(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                           "cuMemGetAllocationGranularity");
        !ok) {
      return ok;
    }
    out_.bytes_ = round_up(out_.bytes_, unit);
    auto mapping = std::make_unique<VmmMapping>(d_);
    if (auto created = mapping->create(c_.device, out_.bytes_); !created) return created;
    auto fd = mapping->export_fd();
    if (!fd) return fd.error();
    exported = *std::move(fd);
    return keep(std::move(mapping), links_.rank());
  }

  Result<void> map_peers(const FileDescriptor& exported) {
    for (int rank = 0; rank < links_.ranks(); ++rank) {
      if (rank == links_.rank()) continue;
      if (auto sent = links_.socket(Channel::control, rank).send_descriptor(exported.get(), deadline_); !sent) return sent;
    }
    // All descriptors are taken off the connections even if one cannot be mapped.
    Result<void> verdict;
    for (int rank = 0; rank < links_.ranks(); ++rank) {
      if (rank == links_.rank()) continue;
      auto fd = links_.socket(Channel::control, rank).receive_descriptor(deadline_);
      if (!fd) return fd.error();
      if (!verdict) continue;
      auto mapping = std::make_unique<VmmMapping>(d_);
      verdict = mapping->import(*fd);
      if (verdict) verdict = keep(std::move(mapping), rank);
    }
    return verdict;
  }

  Result<void> keep(std::unique_ptr<VmmMapping> mapping, int rank) {
    auto mapped = mapping->map(c_.device, out_.bytes_);
    if (!mapped) return Error{mapped.error().code, fmt::format("{} (memory of rank {})", mapped.error().message, rank)};
    address(rank) = *mapped;
    out_.mappings_.push_back(std::move(mapping));
    return {};
  }

  Result<void> allocate() {
    CUdeviceptr data = 0;
    if (auto ok = d_.check(d_.memAlloc(&data, out_.bytes_), fmt::format("cuMemAlloc of {} bytes", out_.bytes_)); !ok) return ok;
    out_.mappings_.push_back(std::make_unique<OwnedMapping>(d_, data));
    address(links_.rank()) = data;
    return {};
  }

  // What a rank needs to open another's memory.
  struct Handle {
    std::uint64_t process = 0;
    CUdeviceptr data = 0;
    std::int32_t device = 0;
    CUipcMemHandle handle{};
  };

  Result<void> share_ipc() {
    if (!links_.one_host()) return Error{ErrorCode::unsupported, "the ranks are on several hosts"};
    Handle mine;
    const auto make_handle = [&]() -> Result<void> {
      if (auto allocated = allocate(); !allocated) return allocated;
      mine.process = process_identity();
      mine.data = out_.local();
      mine.device = c_.device;
      return d_.check(d_.ipcGetMemHandle(&mine.handle, mine.data), "cuIpcGetMemHandle");
    };
    if (auto made = agreed(make_handle()); !made) return made;
    std::vector<Handle> all(static_cast<std::size_t>(links_.ranks()));
    if (auto gathered = links_.all_gather(&mine, sizeof mine, all.data(), deadline_); !gathered) return gathered;
    Result<void> verdict;
    for (int rank = 0; rank < links_.ranks() && verdict; ++rank) {
      if (rank != links_.rank()) verdict = open(all[static_cast<std::size_t>(rank)], rank);
    }
    return agreed(verdict);
  }

  Result<void> open(const Handle& from, int rank) {
    if (from.process == process_identity()) {  // a handle cannot be opened by the process that made it
      address(rank) = from.data;
      return from.device == c_.device ? Result<void>() : enable_peer(from.device);
    }
    CUdeviceptr data = 0;
    if (auto ok = d_.check(d_.ipcOpenMemHandle(&data, from.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                           fmt::format("cuIpcOpenMemHandle (memory of rank {})", rank));
        !ok) {
      return ok;
    }
    out_.mappings_.push_back(std::make_unique<IpcMapping>(d_, data));
    address(rank) = data;
    return {};
  }

  // This device may then read and write all memory of the other that cuMemAlloc made.
  Result<void> enable_peer(int device) const {
    CUcontext other = nullptr;
    if (auto ok = d_.check(d_.devicePrimaryCtxRetain(&other, device), "cuDevicePrimaryCtxRetain"); !ok) return ok;
    const CUresult enabled = d_.ctxEnablePeerAccess(other, 0);
    d_.devicePrimaryCtxRelease(device);
    if (enabled == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) return {};
    return d_.check(enabled, fmt::format("cuCtxEnablePeerAccess from device {} to {}", c_.device, device));
  }

  Result<void> zero() const {
    if (auto ok = d_.check(d_.memsetD8Async(out_.local(), 0, out_.bytes_, nullptr), "cuMemsetD8Async"); !ok) return ok;
    return d_.check(d_.streamSynchronize(nullptr), "cuStreamSynchronize");
  }

  const SharingContext& c_;
  const Driver& d_;
  const Links& links_;
  Deadline deadline_;
  SymmetricMemory out_;
};

Result<SymmetricMemory> SymmetricMemory::allocate(const SharingContext& context, PeerTransport transport, std::size_t bytes) {
  return Maker(context, bytes).make(transport);
}

}  // namespace ordo::peers
