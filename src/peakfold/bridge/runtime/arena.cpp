// The allocator of arenas on the CPU: it stands before torch's own.

#include <c10/core/CPUAllocator.h>

#include <cstddef>

namespace {
constexpr size_t kLine = 64;
constexpr bool kSlots = true;
}  // namespace

#include "arena_core.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace {

constexpr size_t kPage = 4096, kLargePage = 2 << 20;

// Ask for large pages: an arena is read and written all over in every step.
void prepare(Memory& memory) {
#ifdef __linux__
  if (memory.size < kLargePage) return;
  auto first = (reinterpret_cast<uintptr_t>(memory.start()) + kPage - 1) / kPage * kPage;
  madvise(reinterpret_cast<void*>(first), memory.size - kPage, MADV_HUGEPAGE);
#else
  (void)memory;
#endif
}

void fill(char* begin, size_t size) { std::memset(begin, kPoison, size); }

// A thread does one thing after the other.
void enter(Memory&) {}
void leave(Memory&, size_t) {}
bool is_here(const Memory&) { return true; }
void begin_recording() {}
bool may_record() { return true; }
bool is_planned(size_t planned, size_t asked) { return planned == asked; }

struct ArenaAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override { return allocated(size); }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_block; }
  bool is_simple_data_ptr(const c10::DataPtr& pointer) const override {
    return pointer.get() == pointer.get_context();
  }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }
};

}  // namespace

#include "arena_calls.h"

// Stand before torch's allocator; once a process. Returns why not, or null.
extern "C" const char* arena_install() {
  static ArenaAllocator allocator;
  if (base) return nullptr;
  base = c10::GetAllocator(c10::DeviceType::CPU);
  c10::SetAllocator(c10::DeviceType::CPU, &allocator, 255);
  return nullptr;
}
