// Serves the allocations of a step from one arena: planned offsets, in program order.
//
// One allocator stands before torch's own on the CPU. On a thread that runs a step with an arena each
// request is matched with the next planned one by its size, and gets the planned address. Other threads,
// such as those that operators run on, come in no order: for each block that they were seen to have at once
// there is a slot beside the planned ones. Whatever does not match goes to torch's own allocator. A place is
// given out only while no other live block overlaps it, so a wrong plan costs bytes, never a result.

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace {

constexpr int64_t kLookahead = 16;  // planned requests that may be skipped to find one of the same size
constexpr size_t kNamed = 32;       // requests without a match that are remembered
constexpr size_t kLine = 64;         // a block takes whole lines
constexpr size_t kPage = 4096, kLargePage = 2 << 20;
constexpr int kPoison = 0xff;       // fills dead bytes: NaN in every floating type, -1 in whole numbers

c10::Allocator* base = nullptr;

// Held for some comparisons only, and hardly ever by two threads at once.
class SpinLock {
 public:
  void lock() {
    while (flag_.test_and_set(std::memory_order_acquire)) std::this_thread::yield();
  }
  void unlock() { flag_.clear(std::memory_order_release); }

 private:
  std::atomic_flag flag_ = ATOMIC_FLAG_INIT;
};

using Guard = std::lock_guard<SpinLock>;

// A block of bytes and what lives in it.
struct Memory {
  c10::DataPtr block;
  size_t size = 0;
  SpinLock mutex;
  std::vector<std::pair<size_t, size_t>> live;  // (start, end), sorted
  bool released = false;
  char* begin = nullptr;
  std::vector<Memory*> spares;  // for blocks that outlive a step and whose place is taken; by size

  char* start() const { return begin; }

  bool take(size_t first, size_t last) {
    Guard lock(mutex);
    auto next = std::lower_bound(live.begin(), live.end(), std::make_pair(first, size_t{0}));
    if (last > size || (next != live.end() && next->first < last)) return false;
    if (next != live.begin() && std::prev(next)->second > first) return false;
    live.insert(next, {first, last});
    return true;
  }

  bool unused() {
    Guard lock(mutex);
    return live.empty();
  }
};

std::shared_mutex registry_mutex;
std::map<const char*, Memory*> registry;

Memory* memory_of(const void* pointer) {
  auto at = registry.upper_bound(static_cast<const char*>(pointer));
  if (at == registry.begin()) return nullptr;
  Memory* memory = std::prev(at)->second;
  return pointer < memory->start() + memory->size ? memory : nullptr;
}

// Ask for large pages: an arena is read and written all over in every step.
void large_pages(char* begin, size_t size) {
#ifdef __linux__
  if (size < kLargePage) return;
  auto first = (reinterpret_cast<uintptr_t>(begin) + kPage - 1) / kPage * kPage;
  madvise(reinterpret_cast<void*>(first), size - kPage, MADV_HUGEPAGE);
#else
  (void)begin, (void)size;
#endif
}

Memory* new_memory(size_t size) {
  auto* memory = new Memory;
  memory->block = base->allocate(size);
  memory->begin = static_cast<char*>(memory->block.get());
  memory->size = size;
  large_pages(memory->begin, size);
  std::unique_lock<std::shared_mutex> lock(registry_mutex);
  registry[memory->start()] = memory;
  return memory;
}

void destroy(Memory* memory) {
  {
    std::unique_lock<std::shared_mutex> lock(registry_mutex);
    registry.erase(memory->start());
  }
  delete memory;
}

// Give a block up: at once, or with the last tensor in it.
void release(Memory* memory) {
  for (Memory* spare : memory->spares) release(spare);
  memory->spares.clear();
  bool unused;
  {
    Guard lock(memory->mutex);
    memory->released = true;
    unused = memory->live.empty();
  }
  if (unused) destroy(memory);
}

enum Kind : int64_t { ALLOCATE = 0, FREE = 1, MARK = 2, TURN = 3 };

// Blocks of one size that other threads had during a recording.
struct Beside {
  int64_t live = 0, most = 0, count = 0;
};

struct Recorder {
  std::mutex mutex;
  std::vector<int64_t> events;  // pairs (kind, size or index)
  std::map<size_t, Beside> beside;
  int64_t count = 0;
  bool open = true;
};

constexpr int64_t kBeside = -1;  // the index of a block of another thread

struct Recorded {
  c10::DeleterFnPtr deleter;
  void* context;
  Recorder* recorder;
  int64_t index;
  size_t size;
};

std::mutex recorded_mutex;
std::unordered_map<void*, Recorded> recorded;

struct Entry {
  size_t size, offset;
  bool outlives;
};

struct Stats {
  int64_t requests = 0, served = 0, ordinary = 0, ordinary_bytes = 0, spares = 0, high_water = 0;
  int64_t elsewhere = 0, elsewhere_bytes = 0, beside = 0;
};

struct Slot {
  size_t size, offset;
};

struct Plan {
  std::vector<Entry> entries;
  std::vector<Slot> beside;  // for other threads, in the arena
  Memory* arena = nullptr;
  size_t cursor = 0;
  bool lost = false;  // the last request had no match
  bool poison = false;
  Plan* outer = nullptr;  // a step inside which this one runs
  Stats stats;
  std::vector<int64_t> unmatched;  // pairs (cursor, size)
};

// Allocations of threads that run no step, while some thread runs or records one.
struct Others {
  std::mutex mutex;
  std::vector<Plan*> plans;      // that run
  Recorder* recorder = nullptr;  // that is open
  std::atomic<int64_t> watching{0};
  int64_t count = 0, bytes = 0;  // that went to torch's allocator
} others;

thread_local Plan* running = nullptr;
thread_local Recorder* recording = nullptr;

void delete_block(void* pointer);

c10::DataPtr wrapped(void* pointer) {
  return {pointer, pointer, &delete_block, c10::Device(c10::DeviceType::CPU)};
}

void give_back(Memory* memory, void* pointer) {
  bool unused;
  {
    Guard lock(memory->mutex);
    size_t begin = static_cast<char*>(pointer) - memory->start();
    auto at = std::lower_bound(memory->live.begin(), memory->live.end(), std::make_pair(begin, size_t{0}));
    if (running && running->poison) std::memset(pointer, kPoison, at->second - begin);
    memory->live.erase(at);
    unused = memory->released && memory->live.empty();
  }
  if (unused) destroy(memory);
}

bool give_back_recorded(void* pointer) {
  Recorded entry;
  {
    std::lock_guard<std::mutex> lock(recorded_mutex);
    auto at = recorded.find(pointer);
    if (at == recorded.end()) return false;
    entry = at->second;
    recorded.erase(at);
    if (entry.recorder) {
      std::lock_guard<std::mutex> events(entry.recorder->mutex);
      if (entry.index == kBeside)
        --entry.recorder->beside[entry.size].live;
      else if (entry.recorder->open)
        entry.recorder->events.insert(entry.recorder->events.end(), {FREE, entry.index});
    }
  }
  entry.deleter(entry.context);
  return true;
}

bool within(const Memory* memory, const void* pointer) {
  return memory->start() <= pointer && pointer < memory->start() + memory->size;
}

void delete_block(void* pointer) {
  if (running && within(running->arena, pointer)) return give_back(running->arena, pointer);
  Memory* memory;
  {
    std::shared_lock<std::shared_mutex> lock(registry_mutex);
    memory = memory_of(pointer);
  }
  if (memory) return give_back(memory, pointer);
  if (!give_back_recorded(pointer)) base->raw_deleter()(pointer);
}

c10::DataPtr remembered(Recorder* recorder, size_t size, int64_t index) {
  c10::DataPtr block = base->allocate(size);
  void* pointer = block.get();
  Recorded entry{block.get_deleter(), block.get_context(), recorder, index, size};
  block.release_context();
  std::lock_guard<std::mutex> lock(recorded_mutex);
  recorded[pointer] = entry;
  return wrapped(pointer);
}

c10::DataPtr record(size_t size) {
  {
    std::lock_guard<std::mutex> lock(recording->mutex);
    recording->events.insert(recording->events.end(), {ALLOCATE, static_cast<int64_t>(size)});
  }
  return remembered(recording, size, recording->count++);
}

// The planned request that this one is: the next, or one soon after it where the last had no match; else -1.
int64_t find(const Plan& plan, size_t size) {
  size_t ahead = plan.lost ? kLookahead : 1;
  size_t end = std::min(plan.entries.size(), plan.cursor + ahead);
  for (size_t at = plan.cursor; at < end; ++at)
    if (plan.entries[at].size == size) return static_cast<int64_t>(at);
  return -1;
}

c10::DataPtr ordinary(Plan& plan, size_t size) {
  ++plan.stats.ordinary;
  plan.stats.ordinary_bytes += static_cast<int64_t>(size);
  if (plan.unmatched.size() < 2 * kNamed)
    plan.unmatched.insert(plan.unmatched.end(), {static_cast<int64_t>(plan.cursor), static_cast<int64_t>(size)});
  return base->allocate(size);
}

// A block that outlives the step and whose place is still taken: the smallest spare that is large enough, or a
// new one, instead of the largest that is unused.
c10::DataPtr spare(Plan& plan, size_t size) {
  std::vector<Memory*>& spares = plan.arena->spares;
  for (Memory* memory : spares)
    if (memory->take(0, size)) return wrapped(memory->start());
  auto small = std::find_if(spares.rbegin(), spares.rend(), [](Memory* memory) { return memory->unused(); });
  if (small != spares.rend()) {
    release(*small);
    spares.erase(std::prev(small.base()));
  }
  Memory* memory = new_memory(size);
  auto larger = std::find_if(spares.begin(), spares.end(), [=](Memory* other) { return other->size > size; });
  spares.insert(larger, memory);
  ++plan.stats.spares;
  memory->take(0, size);
  return wrapped(memory->start());
}

c10::DataPtr serve(Plan& plan, size_t size) {
  ++plan.stats.requests;
  int64_t found = find(plan, size);
  plan.lost = found < 0;
  if (plan.lost) return ordinary(plan, size);
  plan.cursor = static_cast<size_t>(found) + 1;
  Entry& entry = plan.entries[static_cast<size_t>(found)];
  bool taken = plan.arena->take(entry.offset, entry.offset + size);
  if (!taken && !entry.outlives) return ordinary(plan, size);
  ++plan.stats.served;
  int64_t end = static_cast<int64_t>((entry.offset + size + kLine - 1) / kLine * kLine);
  plan.stats.high_water = std::max(plan.stats.high_water, end);
  return taken ? wrapped(plan.arena->start() + entry.offset) : spare(plan, size);
}

c10::DataPtr beside(Recorder* recorder, size_t size) {
  {
    std::lock_guard<std::mutex> lock(recorder->mutex);
    Beside& seen = recorder->beside[size];
    ++seen.count;
    seen.most = std::max(seen.most, ++seen.live);
  }
  return remembered(recorder, size, kBeside);
}

c10::DataPtr outside(size_t size) {
  if (!size || !others.watching.load(std::memory_order_relaxed)) return base->allocate(size);
  std::lock_guard<std::mutex> lock(others.mutex);
  if (others.recorder) return beside(others.recorder, size);
  for (Plan* plan : others.plans)
    for (const Slot& slot : plan->beside)
      if (size <= slot.size && plan->arena->take(slot.offset, slot.offset + size)) {
        ++plan->stats.beside;
        return wrapped(plan->arena->start() + slot.offset);
      }
  if (!others.plans.empty()) ++others.count, others.bytes += static_cast<int64_t>(size);
  return base->allocate(size);
}

struct ArenaAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    if (size == 0 || (!running && !recording)) return outside(size);
    return running ? serve(*running, size) : record(size);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_block; }
  bool is_simple_data_ptr(const c10::DataPtr& pointer) const override {
    return pointer.get() == pointer.get_context();
  }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }
};

}  // namespace

extern "C" {

// Stand before torch's allocator; once a process.
void arena_install() {
  static ArenaAllocator allocator;
  if (base) return;
  base = c10::GetAllocator(c10::DeviceType::CPU);
  c10::SetAllocator(c10::DeviceType::CPU, &allocator, 255);
}

void* arena_memory(int64_t size) { return new_memory(static_cast<size_t>(size)); }
void* arena_memory_start(void* memory) { return static_cast<Memory*>(memory)->start(); }
void arena_memory_release(void* memory) { release(static_cast<Memory*>(memory)); }

void* arena_plan(void* arena, int64_t count, const int64_t* sizes, const int64_t* offsets, const int8_t* outlives) {
  auto* plan = new Plan;
  plan->arena = static_cast<Memory*>(arena);
  for (int64_t i = 0; i < count; ++i)
    plan->entries.push_back(
        {static_cast<size_t>(sizes[i]), static_cast<size_t>(offsets[i]), outlives[i] != 0});
  return plan;
}

// Add a slot for blocks of other threads.
void arena_plan_beside(void* handle, int64_t size, int64_t offset) {
  static_cast<Plan*>(handle)->beside.push_back({static_cast<size_t>(size), static_cast<size_t>(offset)});
}

void arena_plan_release(void* handle) {
  delete static_cast<Plan*>(handle);
}

// Begin a step on this thread. With poison, bytes are filled with NaN when they die, and all dead ones now.
void arena_begin(void* handle, int poison) {
  auto* plan = static_cast<Plan*>(handle);
  plan->cursor = 0;
  plan->lost = false;
  plan->stats = Stats{};
  {
    std::lock_guard<std::mutex> lock(others.mutex);
    plan->stats.elsewhere = -others.count;
    plan->stats.elsewhere_bytes = -others.bytes;
    others.plans.push_back(plan);
    ++others.watching;
  }
  plan->unmatched.clear();
  plan->poison = poison != 0;
  plan->outer = running;
  running = plan;
  if (!plan->poison) return;
  Guard lock(plan->arena->mutex);
  size_t at = 0;
  for (auto& [begin, end] : plan->arena->live) {
    std::memset(plan->arena->start() + at, kPoison, begin - at);
    at = end;
  }
  std::memset(plan->arena->start() + at, kPoison, plan->arena->size - at);
}

// End the step; fills nine numbers: requests, served, ordinary, bytes of these, spares, the highest byte,
// allocations of other threads that torch's allocator served meanwhile, bytes of these, those in slots.
void arena_end(int64_t* stats) {
  if (!running) return;
  {
    std::lock_guard<std::mutex> lock(others.mutex);
    running->stats.elsewhere += others.count;
    running->stats.elsewhere_bytes += others.bytes;
    others.plans.erase(std::find(others.plans.begin(), others.plans.end(), running));
    --others.watching;
  }
  std::memcpy(stats, &running->stats, sizeof(Stats));
  running = running->outer;
}

// The requests of the last step without a match: pairs (place in the plan, size), at most ``room`` pairs.
int64_t arena_unmatched(void* handle, int64_t* pairs, int64_t room) {
  auto& found = static_cast<Plan*>(handle)->unmatched;
  int64_t count = std::min<int64_t>(room, static_cast<int64_t>(found.size()) / 2);
  std::copy_n(found.begin(), 2 * count, pairs);
  return count;
}

void* arena_record_begin() {
  recording = new Recorder;
  std::lock_guard<std::mutex> lock(others.mutex);
  others.recorder = recording;
  ++others.watching;
  return recording;
}

void arena_mark() {
  if (recording) recording->events.insert(recording->events.end(), {MARK, 0});
}

// Note the way of a branch or loop.
void arena_note(int64_t way) {
  if (recording) recording->events.insert(recording->events.end(), {TURN, way});
}

// Go on with another planned request: a branch or loop goes this way.
void arena_turn(int64_t cursor) {
  if (!running) return;
  running->cursor = static_cast<size_t>(cursor);
  running->lost = false;
}

// End a recording; returns how many pairs there are.
int64_t arena_record_end(void* handle) {
  auto* recorder = static_cast<Recorder*>(handle);
  recording = nullptr;
  {
    std::lock_guard<std::mutex> lock(others.mutex);
    others.recorder = nullptr;
    --others.watching;
  }
  std::lock_guard<std::mutex> lock(recorder->mutex);
  recorder->open = false;
  return static_cast<int64_t>(recorder->events.size()) / 2;
}

// What other threads had during a recording: at most ``room`` rows (size, most at once, count); returns how many.
int64_t arena_record_beside(void* handle, int64_t* rows, int64_t room) {
  auto* recorder = static_cast<Recorder*>(handle);
  std::lock_guard<std::mutex> lock(recorder->mutex);
  int64_t count = 0;
  for (auto& [size, seen] : recorder->beside) {
    if (count == room) break;
    int64_t row[] = {static_cast<int64_t>(size), seen.most, seen.count};
    std::copy_n(row, 3, rows + 3 * count++);
  }
  return count;
}

void arena_record_take(void* handle, int64_t* pairs) {
  auto* recorder = static_cast<Recorder*>(handle);
  std::copy(recorder->events.begin(), recorder->events.end(), pairs);
  std::lock_guard<std::mutex> lock(recorded_mutex);
  for (auto& [pointer, entry] : recorded)
    if (entry.recorder == recorder) entry.recorder = nullptr;
  delete recorder;
}

}  // extern "C"
