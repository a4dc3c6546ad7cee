// The allocator of arenas on CUDA over a runtime of CUDA, streams and an allocator of torch's that are made up.

#include "arena_cuda.cpp"

#include <cstdlib>
#include <map>
#include <stdexcept>
#include <vector>

namespace {

int device = 0;
int64_t stream = 1;
bool is_full = false;
std::vector<int64_t> waits, noted;           // (waiting, waited for); streams that torch was told of
std::map<cudaEvent_t, cudaStream_t> events;  // by what was recorded
int64_t calls = 0, live = 0, most = 0;
std::map<void*, size_t> blocks;
std::map<void*, c10::DataPtr> held;

int64_t number(cudaStream_t of) { return reinterpret_cast<int64_t>(of); }

void give(void* pointer) {
  live -= static_cast<int64_t>(blocks.at(pointer));
  blocks.erase(pointer);
  std::free(pointer);
}

[[noreturn]] void none() { throw std::logic_error("the stub has none"); }

struct Stub final : torchs::CUDAAllocator {
  bool begun = false;
  c10::DataPtr allocate(size_t size) override {
    if (is_full) throw std::runtime_error("CUDA out of memory");
    size_t room = in_lines(size ? size : 1);
    void* pointer = std::aligned_alloc(kLine, room);
    blocks[pointer] = room;
    ++calls;
    most = std::max(most, live += static_cast<int64_t>(room));
    return {pointer, pointer, &give, c10::Device(c10::DeviceType::CUDA, static_cast<Device>(device))};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give; }
  void copy_data(void* to, const void* from, size_t count) const override { std::memcpy(to, from, count); }
  void* raw_alloc(size_t size) override { return allocate(size).release_context(); }
  void* raw_alloc_with_stream(size_t size, cudaStream_t) override { return raw_alloc(size); }
  void raw_delete(void* pointer) override { give(pointer); }
  void recordStream(const c10::DataPtr& of, c10::cuda::CUDAStream at) override {
    if (of.get_deleter() == &give) noted.push_back(number(at.stream()));
  }
  std::string name() override { return "native"; }
  bool initialized() override { return begun; }
  void init(int) override {}
  void enable(bool) override {}
  bool isEnabled() const override { return true; }
  void emptyCache(Pool) override {}
  void cacheInfo(Device, size_t*) override {}
  void* getBaseAllocation(void* pointer, size_t* size) override {
    *size = blocks.at(pointer);
    return pointer;
  }
  torchs::ShareableHandle shareIpcHandle(void* pointer) override {
    blocks.at(pointer);
    return {0, ""};
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(Device) override { return {}; }
  void resetAccumulatedStats(Device) override {}
  void resetPeakStats(Device) override {}
  double getMemoryFraction(Device) override { return 1.0; }
  void setMemoryFraction(double, Device) override {}
  std::vector<torchs::StreamSegmentSize> getExpandableSegmentSizes(Device) override { return {}; }
  torchs::SnapshotInfo snapshot(Pool, bool) override { return {}; }
  void beginAllocateToPool(Device, Pool, std::function<bool(cudaStream_t)>) override {}
  void endAllocateToPool(Device, Pool) override {}
  void releasePool(Device, Pool) override {}
  std::shared_ptr<void> getIpcDevPtr(std::string) override { none(); }
  void recordHistory(bool, torchs::CreateContextFn, size_t, torchs::RecordContext, bool,
                     const std::vector<std::string>&) override {}
  void attachOutOfMemoryObserver(torchs::OutOfMemoryObserver) override {}
  void attachOomRejectionObserver(torchs::OomRejectionObserver) override {}
  void attachAllocatorTraceTracker(torchs::AllocatorTraceTracker) override {}
  void enablePeerAccess(Device, Device) override {}
  cudaError_t memcpyAsync(void*, int, const void*, int, size_t, cudaStream_t, bool) override { none(); }
  std::shared_ptr<torchs::AllocatorState> getCheckpointState(Device, Pool) override { none(); }
  torchs::CheckpointDelta setCheckpointPoolState(Device, std::shared_ptr<torchs::AllocatorState>) override { none(); }
} stub;

c10::cuda::CUDAStream stream_numbered(int64_t id) {
  c10::Device at(c10::DeviceType::CUDA, static_cast<Device>(device));
  return c10::cuda::CUDAStream(c10::cuda::CUDAStream::UNCHECKED, c10::Stream(c10::Stream::UNSAFE, at, id));
}

}  // namespace

namespace c10::cuda {
namespace CUDACachingAllocator {
std::atomic<CUDAAllocator*> allocator{&stub};
}
void c10_cuda_check_implementation(int32_t, const char*, const char*, uint32_t, bool) {}
DeviceIndex current_device() { return static_cast<DeviceIndex>(device); }
CUDAStream getCurrentCUDAStream(DeviceIndex) { return stream_numbered(stream); }
cudaStream_t CUDAStream::stream() const { return reinterpret_cast<cudaStream_t>(stream_.id()); }
}  // namespace c10::cuda

extern "C" {

cudaError_t cudaGetDevice(int* found) { return *found = device, cudaSuccess; }
cudaError_t cudaSetDevice(int given) { return device = given, cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t*, size_t*) { return cudaErrorInvalidValue; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaMemsetAsync(void* at, int byte, size_t count, cudaStream_t) {
  return std::memset(at, byte, count), cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* made, unsigned) {
  *made = reinterpret_cast<cudaEvent_t>(new char);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t on) { return events[event] = on, cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t waiting, cudaEvent_t event, unsigned) {
  waits.insert(waits.end(), {number(waiting), number(events.at(event))});
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  events.erase(event);
  delete reinterpret_cast<char*>(event);
  return cudaSuccess;
}

void stub_init() { stub.begun = true; }
void stub_full(bool given) { is_full = given; }
void stub_on(int on_device, int64_t on_stream) { device = on_device, stream = on_stream; }
int64_t stub_calls() { return calls; }
int64_t stub_live() { return live; }
int64_t stub_most() { return std::exchange(most, live); }

// What torch's tensors ask for, and give back.
void* stub_allocate(int64_t size) {
  c10::DataPtr made = torchs::get()->allocate(static_cast<size_t>(size));
  void* pointer = made.get();
  held[pointer] = std::move(made);
  return pointer;
}
void stub_free(void* pointer) { held.erase(pointer); }
void* stub_raw(int64_t size) { return torchs::raw_alloc(static_cast<size_t>(size)); }
void stub_raw_free(void* pointer) { torchs::raw_delete(pointer); }
void stub_reads(void* pointer, int64_t by) { torchs::recordStream(held.at(pointer), stream_numbered(by)); }
int64_t stub_base(void* pointer) {
  size_t size = 0;
  void* start = torchs::getBaseAllocation(pointer, &size);
  int64_t away = torchs::get()->shareIpcHandle(pointer).offset;
  return start == static_cast<char*>(pointer) - away ? away : -1;
}

// Take the last of what was seen: pairs of a stream and one that it waits for, or streams that torch was told of.
int64_t stub_take(bool of_waits, int64_t* numbers) {
  std::vector<int64_t>& from = of_waits ? waits : noted;
  std::copy(from.begin(), from.end(), numbers);
  int64_t count = static_cast<int64_t>(from.size());
  from.clear();
  return count;
}

}  // extern "C"
