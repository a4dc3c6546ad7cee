// What every allocator of arenas does: planned offsets, in program order. A file for each device includes it.
//
// On a thread that runs a step with an arena each request is matched with the next planned one by its size,
// and gets the planned address. Other threads, such as those that operators run on, come in no order: for each
// block that they were seen to have at once there is a slot beside the planned ones. Whatever does not match
// goes to torch's own allocator. A place is given out only while no other live block overlaps it, so a wrong
// plan costs bytes, never a result.

#pragma once

#include <c10/core/Allocator.h>

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

namespace {

constexpr int64_t kLookahead = 16;  // planned requests that may be skipped to find one of the same size
constexpr size_t kNamed = 32;       // requests without a match that are remembered
constexpr int kPoison = 0xff;       // fills dead bytes: NaN in every floating type, -1 in whole numbers

c10::Allocator* base = nullptr;  // torch's own

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
  void* queue = nullptr;  // on a device with queues, the one of the last step; used under the mutex
  std::multimap<size_t, void*> readers;  // starts of live blocks, and other queues that read them

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

// What the file of a device says:
// - kLine: a block takes whole lines of so many bytes;
// - kSlots: blocks of other threads may have slots in an arena.
void prepare(Memory& memory);            // once a block is there
void fill(char* begin, size_t size);     // with kPoison, after what was begun before
void enter(Memory& memory);              // a step begins: it comes after all that was begun in the block
void leave(Memory& memory, size_t start);  // a place is used again: after all that reads it
bool is_here(const Memory& memory);      // what the calling thread asks for now is for this device and queue
void begin_recording();                  // of what the calling thread asks for
bool may_record();                       // as is_here, where a step is recorded
bool is_planned(size_t planned, size_t asked);  // a request is the planned one

size_t in_lines(size_t size) { return (size + kLine - 1) / kLine * kLine; }

std::shared_mutex registry_mutex;
std::map<const char*, Memory*> registry;

Memory* memory_of(const void* pointer) {
  auto at = registry.upper_bound(static_cast<const char*>(pointer));
  if (at == registry.begin()) return nullptr;
  Memory* memory = std::prev(at)->second;
  return pointer < memory->start() + memory->size ? memory : nullptr;
}

Memory* new_memory(size_t size) {
  c10::DataPtr block = base->allocate(size);
  auto* memory = new Memory;
  memory->block = std::move(block);
  memory->begin = static_cast<char*>(memory->block.get());
  memory->size = size;
  prepare(*memory);
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

c10::DataPtr wrapped(void* pointer, c10::Device device) { return {pointer, pointer, &delete_block, device}; }

c10::DataPtr place_in(const Memory* memory, size_t offset) {
  return wrapped(memory->start() + offset, memory->block.device());
}

void give_back(Memory* memory, void* pointer) {
  bool unused;
  {
    Guard lock(memory->mutex);
    size_t begin = static_cast<char*>(pointer) - memory->start();
    auto at = std::lower_bound(memory->live.begin(), memory->live.end(), std::make_pair(begin, size_t{0}));
    leave(*memory, begin);
    if (running && running->poison) fill(static_cast<char*>(pointer), at->second - begin);
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
  c10::Device device = block.device();
  block.release_context();
  std::lock_guard<std::mutex> lock(recorded_mutex);
  recorded[pointer] = entry;
  return wrapped(pointer, device);
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
    if (is_planned(plan.entries[at].size, size)) return static_cast<int64_t>(at);
  return -1;
}

c10::DataPtr ordinary(Plan& plan, size_t size) {
  ++plan.stats.ordinary;
  plan.stats.ordinary_bytes += static_cast<int64_t>(size);
  if (plan.unmatched.size() < 2 * kNamed)
    plan.unmatched.insert(plan.unmatched.end(), {static_cast<int64_t>(plan.cursor), static_cast<int64_t>(size)});
  return base->allocate(size);
}

c10::DataPtr entered(Memory& memory) {
  Guard lock(memory.mutex);
  enter(memory);
  return place_in(&memory, 0);
}

// A block that outlives the step and whose place is still taken: the smallest spare that is large enough, or a
// new one, instead of the largest that is unused.
c10::DataPtr spare(Plan& plan, size_t size) {
  std::vector<Memory*>& spares = plan.arena->spares;
  for (Memory* memory : spares)
    if (memory->take(0, size)) return entered(*memory);
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
  return entered(*memory);
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
  int64_t end = static_cast<int64_t>(in_lines(entry.offset + size));
  plan.stats.high_water = std::max(plan.stats.high_water, end);
  return taken ? place_in(plan.arena, entry.offset) : spare(plan, size);
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
  if (others.recorder && kSlots) return beside(others.recorder, size);
  for (Plan* plan : others.plans)
    for (const Slot& slot : plan->beside)
      if (size <= slot.size && plan->arena->take(slot.offset, slot.offset + size)) {
        ++plan->stats.beside;
        return place_in(plan->arena, slot.offset);
      }
  if (!others.plans.empty()) ++others.count, others.bytes += static_cast<int64_t>(size);
  return base->allocate(size);
}

// What is asked for of the allocator of an arena.
c10::DataPtr allocated(size_t size) {
  bool ours = size && (running ? is_here(*running->arena) : recording && may_record());
  if (!ours) return outside(size);
  return running ? serve(*running, size) : record(size);
}

}  // namespace
