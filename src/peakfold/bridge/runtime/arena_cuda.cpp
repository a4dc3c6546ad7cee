// The allocator of arenas on CUDA: it stands before torch's own, whose blocks and counts stay as they are.
//
// It has never run on a GPU; see docs/arena.md. A block for arenas is one of torch's own, so that torch counts
// its bytes. Steps run on one stream each: a place that is given back is used again by what the same stream
// does later, and what other streams were said to read (record_stream) is waited for before that.
// Requests for another device or stream than that of the step go to torch's allocator.

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <cstddef>

namespace {
constexpr size_t kLine = 512;  // as torch's own allocator: kernels are chosen by how addresses are aligned
constexpr bool kSlots = false;
}  // namespace

#include "arena_core.h"

namespace {

namespace torchs = c10::cuda::CUDACachingAllocator;

torchs::CUDAAllocator* own() { return static_cast<torchs::CUDAAllocator*>(base); }

c10::cuda::CUDAStream stream_of(const Memory& memory) {
  return c10::cuda::getCurrentCUDAStream(memory.block.device().index());
}

cudaStream_t queue_of(const Memory& memory) { return static_cast<cudaStream_t>(memory.queue); }

// Let a stream wait for what another one was told so far; the host does not wait, unless that fails.
void wait(const Memory& memory, cudaStream_t waiting, cudaStream_t before) {
  int current = 0, device = memory.block.device().index();
  cudaGetDevice(&current);
  cudaSetDevice(device);
  cudaEvent_t event = nullptr;
  bool waits = cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess &&
               cudaEventRecord(event, before) == cudaSuccess &&
               cudaStreamWaitEvent(waiting, event, 0) == cudaSuccess;
  if (!waits) cudaDeviceSynchronize();
  if (event) cudaEventDestroy(event);
  cudaSetDevice(current);
}

void prepare(Memory& memory) { memory.queue = stream_of(memory).stream(); }

void enter(Memory& memory) {
  c10::cuda::CUDAStream stream = stream_of(memory);
  if (stream.stream() == queue_of(memory)) return;
  wait(memory, stream.stream(), queue_of(memory));
  own()->recordStream(memory.block, stream);
  memory.queue = stream.stream();
}

void leave(Memory& memory, size_t start) {
  auto [first, last] = memory.readers.equal_range(start);
  for (auto at = first; at != last; ++at)
    wait(memory, queue_of(memory), static_cast<cudaStream_t>(at->second));
  memory.readers.erase(first, last);
}

void fill(char* begin, size_t size) {
  if (size) cudaMemsetAsync(begin, kPoison, size, queue_of(*running->arena));
}

bool is_here(const Memory& memory) {
  return c10::cuda::current_device() == memory.block.device().index() &&
         stream_of(memory).stream() == queue_of(memory);
}

c10::DeviceIndex recorded_device = 0;
cudaStream_t recorded_queue = nullptr;

void begin_recording() {
  recorded_device = c10::cuda::current_device();
  recorded_queue = c10::cuda::getCurrentCUDAStream(recorded_device).stream();
}

bool may_record() {
  return c10::cuda::current_device() == recorded_device &&
         c10::cuda::getCurrentCUDAStream(recorded_device).stream() == recorded_queue;
}

bool is_planned(size_t planned, size_t asked) { return planned == in_lines(asked); }

Memory* memory_with(const void* pointer) {
  std::shared_lock<std::shared_mutex> lock(registry_mutex);
  return memory_of(pointer);
}

// A pointer that torch's own allocator knows: that of the whole block, for what lies in an arena.
void* known(void* pointer) {
  Memory* memory = memory_with(pointer);
  return memory ? memory->start() : pointer;
}

using Device = c10::DeviceIndex;
using Pool = c10::MempoolId_t;

class Arenas final : public torchs::CUDAAllocator {
 public:
  c10::DataPtr allocate(size_t size) override { return allocated(size); }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_block; }
  bool is_simple_data_ptr(const c10::DataPtr& pointer) const override {
    return pointer.get() == pointer.get_context();
  }
  void copy_data(void* to, const void* from, std::size_t count) const override { base->copy_data(to, from, count); }

  void* raw_alloc(size_t size) override {
    c10::DataPtr block = allocated(size);
    void* pointer = block.get();
    block.release_context();
    return pointer;
  }
  void* raw_alloc_with_stream(size_t size, cudaStream_t stream) override {
    bool here = stream == c10::cuda::getCurrentCUDAStream().stream();
    return here ? raw_alloc(size) : own()->raw_alloc_with_stream(size, stream);
  }
  void raw_delete(void* pointer) override { delete_block(pointer); }

  void recordStream(const c10::DataPtr& pointer, c10::cuda::CUDAStream stream) override {
    if (pointer.get_deleter() != &delete_block) return own()->recordStream(pointer, stream);
    if (Memory* memory = memory_with(pointer.get())) {
      Guard lock(memory->mutex);
      size_t start = static_cast<size_t>(static_cast<char*>(pointer.get()) - memory->start());
      if (stream.stream() != queue_of(*memory)) memory->readers.emplace(start, stream.stream());
      return;
    }
    c10::DataPtr block{pointer.get(), pointer.get(), own()->raw_deleter(), pointer.device()};
    own()->recordStream(block, stream);
    block.release_context();
  }

  void* getBaseAllocation(void* pointer, size_t* size) override {
    return own()->getBaseAllocation(known(pointer), size);
  }
  torchs::ShareableHandle shareIpcHandle(void* pointer) override {
    void* start = known(pointer);
    torchs::ShareableHandle found = own()->shareIpcHandle(start);
    found.offset += static_cast<char*>(pointer) - static_cast<char*>(start);
    return found;
  }
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* pointer) override {
    return own()->getContextForPointer(known(const_cast<void*>(pointer)));
  }

  // All else is torch's own.
  std::string name() override { return own()->name(); }
  bool initialized() override { return own()->initialized(); }
  void init(int count) override { own()->init(count); }
  void enable(bool value) override { own()->enable(value); }
  bool isEnabled() const override { return own()->isEnabled(); }
  void emptyCache(Pool pool) override { own()->emptyCache(pool); }
  void cacheInfo(Device device, size_t* largest) override { own()->cacheInfo(device, largest); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(Device device) override {
    return own()->getDeviceStats(device);
  }
  void resetAccumulatedStats(Device device) override { own()->resetAccumulatedStats(device); }
  void resetPeakStats(Device device) override { own()->resetPeakStats(device); }
  std::pair<size_t, size_t> getMemoryInfo(Device device) override { return own()->getMemoryInfo(device); }
  double getMemoryFraction(Device device) override { return own()->getMemoryFraction(device); }
  void setMemoryFraction(double fraction, Device device) override { own()->setMemoryFraction(fraction, device); }
  std::vector<torchs::StreamSegmentSize> getExpandableSegmentSizes(Device device) override {
    return own()->getExpandableSegmentSizes(device);
  }
  torchs::SnapshotInfo snapshot(Pool pool, bool traces) override { return own()->snapshot(pool, traces); }
  void beginAllocateToPool(Device device, Pool pool, std::function<bool(cudaStream_t)> filter) override {
    own()->beginAllocateToPool(device, pool, std::move(filter));
  }
  void endAllocateToPool(Device device, Pool pool) override { own()->endAllocateToPool(device, pool); }
  void markCaptureBegin(Device device) override { own()->markCaptureBegin(device); }
  void markCaptureEnd(Device device) override { own()->markCaptureEnd(device); }
  void releasePool(Device device, Pool pool) override { own()->releasePool(device, pool); }
  int getPoolUseCount(Device device, Pool pool) override { return own()->getPoolUseCount(device, pool); }
  void createOrIncrefPool(Device device, Pool pool, std::shared_ptr<torchs::CUDAAllocator> given) override {
    own()->createOrIncrefPool(device, pool, std::move(given));
  }
  void setUseOnOOM(Device device, Pool pool, bool use) override { own()->setUseOnOOM(device, pool, use); }
  void setNoSplit(Device device, Pool pool) override { own()->setNoSplit(device, pool); }
  bool checkPoolLiveAllocations(Device device, Pool pool, const std::unordered_set<void*>& live) override {
    return own()->checkPoolLiveAllocations(device, pool, live);
  }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override { return own()->getIpcDevPtr(std::move(handle)); }
  bool isHistoryEnabled() override { return own()->isHistoryEnabled(); }
  void recordHistory(bool enabled, torchs::CreateContextFn recorder, size_t most, torchs::RecordContext when,
                     bool clear, const std::vector<std::string>& skipped) override {
    own()->recordHistory(enabled, recorder, most, when, clear, skipped);
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& said) override {
    own()->recordAnnotation(said);
  }
  void pushCompileContext(std::string& said) override { own()->pushCompileContext(said); }
  void popCompileContext() override { own()->popCompileContext(); }
  void setUserMetadata(const std::string& said) override { own()->setUserMetadata(said); }
  std::string getUserMetadata() override { return own()->getUserMetadata(); }
  void attachOutOfMemoryObserver(torchs::OutOfMemoryObserver observer) override {
    own()->attachOutOfMemoryObserver(std::move(observer));
  }
  void attachOomRejectionObserver(torchs::OomRejectionObserver observer) override {
    own()->attachOomRejectionObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(torchs::AllocatorTraceTracker tracker) override {
    own()->attachAllocatorTraceTracker(std::move(tracker));
  }
  void enablePeerAccess(Device device, Device other) override { own()->enablePeerAccess(device, other); }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t count,
                          cudaStream_t stream, bool peers) override {
    return own()->memcpyAsync(to, to_device, from, from_device, count, stream, peers);
  }
  std::shared_ptr<torchs::AllocatorState> getCheckpointState(Device device, Pool pool) override {
    return own()->getCheckpointState(device, pool);
  }
  torchs::CheckpointDelta setCheckpointPoolState(Device device,
                                                 std::shared_ptr<torchs::AllocatorState> state) override {
    return own()->setCheckpointPoolState(device, std::move(state));
  }
  c10::DataPtr allocateWithAddress(size_t size, void* address) override {
    return own()->allocateWithAddress(size, address);
  }
};

}  // namespace

#include "arena_calls.h"

// Stand before torch's allocator; once a process, after torch has begun on the device. Returns why not, or null.
extern "C" const char* arena_install() {
  if (base) return nullptr;
  torchs::CUDAAllocator* found = torchs::get();
  if (!found || !found->initialized()) return "torch has not begun to use the device";
  if (found->name() != "native") return "torch does not allocate with its own caching allocator";
  base = found;
  auto* arenas = new Arenas;  // as long as the process: blocks are given back at its very end
  torchs::allocator.store(arenas);
  c10::SetAllocator(c10::DeviceType::CUDA, arenas, 255);
  return nullptr;
}
