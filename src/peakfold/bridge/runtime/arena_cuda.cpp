// An arena on a CUDA device, as an allocator for torch.cuda.memory.CUDAPluggableAllocator.
//
// It has never run on a GPU. With ARENA_ON_HOST its bytes are the host's: so are its tests.
// While a step runs, requests of its device and stream are matched with the planned ones by order and size;
// all others, and what is not as planned, go to the driver. A place is given out only while no other live
// block overlaps it. Blocks of one stream follow each other in the order of that stream: no event is needed.

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#ifdef ARENA_ON_HOST
#include <cstdlib>
using Stream = void*;
static void* driver_malloc(size_t size, int) { return std::malloc(size); }
static void driver_free(void* pointer, int) { std::free(pointer); }
#else
#include <cuda_runtime_api.h>
using Stream = cudaStream_t;
static void* driver_malloc(size_t size, int device) {
  void* pointer = nullptr;
  cudaSetDevice(device);
  return cudaMalloc(&pointer, size) == cudaSuccess ? pointer : nullptr;
}
static void driver_free(void* pointer, int device) {
  cudaSetDevice(device);
  cudaFree(pointer);
}
#endif

namespace {

struct Request {
  int64_t size, offset;
};

struct Arena {
  std::mutex mutex;
  char* begin = nullptr;
  int64_t bytes = 0;
  int device = 0;
  Stream stream = nullptr;
  std::vector<Request> requests;
  std::map<int64_t, int64_t> live;  // start to end
  size_t cursor = 0;
  bool running = false;
  int64_t served = 0, ordinary = 0;
} arena;

bool take(int64_t first, int64_t last) {
  auto next = arena.live.lower_bound(first);
  if (last > arena.bytes || (next != arena.live.end() && next->first < last)) return false;
  if (next != arena.live.begin() && std::prev(next)->second > first) return false;
  arena.live[first] = last;
  return true;
}

}  // namespace

extern "C" {

void* arena_cuda_malloc(int64_t size, int device, Stream stream) {
  std::lock_guard<std::mutex> lock(arena.mutex);
  if (!arena.running || device != arena.device || stream != arena.stream || size <= 0)
    return driver_malloc(static_cast<size_t>(size), device);
  if (arena.cursor < arena.requests.size() && arena.requests[arena.cursor].size == size) {
    const Request& planned = arena.requests[arena.cursor++];
    if (take(planned.offset, planned.offset + size)) {
      ++arena.served;
      return arena.begin + planned.offset;
    }
  }
  ++arena.ordinary;
  return driver_malloc(static_cast<size_t>(size), device);
}

void arena_cuda_free(void* pointer, int64_t, int device, Stream) {
  std::lock_guard<std::mutex> lock(arena.mutex);
  int64_t offset = static_cast<char*>(pointer) - arena.begin;
  if (arena.begin && offset >= 0 && offset < arena.bytes)
    arena.live.erase(offset);
  else
    driver_free(pointer, device);
}

// Take the bytes of an arena and what is planned in it; false where the device has not that much.
bool arena_cuda_plan(int64_t bytes, int device, int64_t count, const int64_t* sizes, const int64_t* offsets) {
  std::lock_guard<std::mutex> lock(arena.mutex);
  if (!arena.live.empty()) return false;
  if (arena.begin) driver_free(arena.begin, arena.device);
  arena.requests.clear();
  for (int64_t i = 0; i < count; ++i) arena.requests.push_back({sizes[i], offsets[i]});
  arena.begin = static_cast<char*>(driver_malloc(static_cast<size_t>(bytes), device));
  arena.bytes = arena.begin ? bytes : 0;
  arena.device = device;
  return arena.begin != nullptr;
}

void arena_cuda_begin(Stream stream) {
  std::lock_guard<std::mutex> lock(arena.mutex);
  arena.stream = stream;
  arena.cursor = 0;
  arena.served = arena.ordinary = 0;
  arena.running = true;
}

// End the step; fills two numbers: requests that the arena served, and others of its stream.
void arena_cuda_end(int64_t* numbers) {
  std::lock_guard<std::mutex> lock(arena.mutex);
  arena.running = false;
  numbers[0] = arena.served;
  numbers[1] = arena.ordinary;
}

}  // extern "C"
