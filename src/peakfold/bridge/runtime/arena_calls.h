// What Python calls of an allocator of arenas, whatever the device. Comes after arena_core.h.

#pragma once

extern "C" {

// Take a block; null where there is no room for it.
void* arena_memory(int64_t size) {
  try {
    return new_memory(static_cast<size_t>(size));
  } catch (const std::exception&) {
    return nullptr;
  }
}
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
  Guard lock(plan->arena->mutex);
  enter(*plan->arena);
  if (!plan->poison) return;
  size_t at = 0;
  for (auto& [begin, end] : plan->arena->live) {
    fill(plan->arena->start() + at, begin - at);
    at = end;
  }
  fill(plan->arena->start() + at, plan->arena->size - at);
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
  begin_recording();
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
