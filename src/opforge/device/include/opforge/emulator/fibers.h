// opforge/emulator/fibers.h - CUDA threads as fibers: switching, waiting, what the lanes of a warp exchange.
//
// Part of opforge/emulator/execution.h, which alone includes it, inside namespace opforge::emu.

constexpr std::size_t kStackBytes = 64 * 1024;  // a power of two; stacks are aligned to it
constexpr unsigned kMaxThreads = 1024;
constexpr std::size_t kMaxSharedBytes = 227 * 1024;

constexpr unsigned kMaxCluster = 16;

// kPolling: waits for shared memory to change; kReady again once something has happened there
enum class State : uint8_t { kReady, kYielded, kBlockBarrier, kWarpBarrier, kClusterBarrier, kPolling, kDone };

struct Site {  // a place in the kernel, for messages and to tell barriers apart
  const char* file;
  int line;
};

struct Block;
struct Warp;

// Lies at the upper end of the fiber's own stack, where self() finds it.
struct Fiber {
  uint3 thread_index;
  Block* block;
  Warp* warp;
#ifdef OPFORGE_EMU_UCONTEXT
  ucontext_t context;
#else
  void* stack_pointer;
#endif
  unsigned lane;
  unsigned spins;
  State state;
  Site site;
};

// One warp operation in flight.  Values are double buffered: a lane may post to the
// next operation on the same mask while others still read this one.
struct Collective {
  uint32_t mask, arrived, generation;
  const char* kind;
  Site site;
  alignas(16) unsigned char values[2][32][16];
};

struct Warp {
  uint32_t lanes;  // lanes that exist (the last warp of a block may be partial)
  Fiber* fibers[32];
  int used;
  Collective collectives[8];
};

struct Block {
  uint3 block_index;
  dim3 block_dim, grid_dim;
  unsigned char* dynamic_shared;
  std::size_t dynamic_shared_bytes;
  void (*entry)(void*);
  void* argument;
#ifdef OPFORGE_EMU_UCONTEXT
  ucontext_t scheduler;
#else
  void* scheduler;
#endif
  unsigned count_now, count_result;  // for __syncthreads_count and friends
  std::string error;
  unsigned cluster_rank, cluster_size;
  Block* cluster;  // the blocks of this block's cluster
  unsigned char* static_shared;  // where its __shared__ variables are while it runs
  std::size_t static_shared_bytes;
  std::vector<unsigned char> static_kept;  // their values while another block of the cluster runs
  uint64_t events;  // changes of this block's barriers in shared memory
};

/// The fiber that is running; valid only inside a kernel.
__attribute__((always_inline)) inline Fiber* self() {
  const uintptr_t here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  return reinterpret_cast<Fiber*>((here | (kStackBytes - 1)) + 1 - sizeof(Fiber));
}

#ifdef OPFORGE_EMU_UCONTEXT
inline void switch_to_scheduler(Fiber* f) { swapcontext(&f->context, &f->block->scheduler); }
inline void switch_to_fiber(Fiber* f) { swapcontext(&f->block->scheduler, &f->context); }
#else
// Saves the callee-saved registers on the stack, swaps stack pointers, restores.
extern "C" void opforge_emu_switch(void** save, void* load)
    __attribute__((visibility("hidden")));
#if defined(__x86_64__)
__asm__(
    ".text\n.p2align 4\n.type opforge_emu_switch,@function\nopforge_emu_switch:\n"
    "  endbr64\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  ret\n.size opforge_emu_switch,.-opforge_emu_switch\n");
#else
__asm__(
    ".text\n.p2align 4\n.type opforge_emu_switch,%function\nopforge_emu_switch:\n"
    "  sub sp, sp, #160\n"
    "  stp x19, x20, [sp, #0]\n  stp x21, x22, [sp, #16]\n  stp x23, x24, [sp, #32]\n"
    "  stp x25, x26, [sp, #48]\n  stp x27, x28, [sp, #64]\n  stp x29, x30, [sp, #80]\n"
    "  stp d8, d9, [sp, #96]\n  stp d10, d11, [sp, #112]\n  stp d12, d13, [sp, #128]\n"
    "  stp d14, d15, [sp, #144]\n"
    "  mov x9, sp\n  str x9, [x0]\n  mov sp, x1\n"
    "  ldp x19, x20, [sp, #0]\n  ldp x21, x22, [sp, #16]\n  ldp x23, x24, [sp, #32]\n"
    "  ldp x25, x26, [sp, #48]\n  ldp x27, x28, [sp, #64]\n  ldp x29, x30, [sp, #80]\n"
    "  ldp d8, d9, [sp, #96]\n  ldp d10, d11, [sp, #112]\n  ldp d12, d13, [sp, #128]\n"
    "  ldp d14, d15, [sp, #144]\n"
    "  add sp, sp, #160\n  ret\n.size opforge_emu_switch,.-opforge_emu_switch\n");
#endif
inline void switch_to_scheduler(Fiber* f) {
  opforge_emu_switch(&f->stack_pointer, f->block->scheduler);
}
inline void switch_to_fiber(Fiber* f) {
  opforge_emu_switch(&f->block->scheduler, f->stack_pointer);
}
#endif

__attribute__((noinline)) inline void fiber_main() {
  Fiber* fiber = self();
  fiber->block->entry(fiber->block->argument);
  fiber->state = State::kDone;
  for (;;) switch_to_scheduler(fiber);
}

inline std::string describe(const uint3& v) {
  return "(" + std::to_string(v.x) + "," + std::to_string(v.y) + "," + std::to_string(v.z) + ")";
}
inline std::string describe(const Site& site) {
  const char* slash = std::strrchr(site.file, '/');
  return std::string(slash ? slash + 1 : site.file) + ":" + std::to_string(site.line);
}

/// Ends the launch with an error from inside a kernel.
[[noreturn]] inline void fail(const std::string& message) {
  Fiber* fiber = self();
  if (fiber->block->error.empty())
    fiber->block->error = message + " [block " + describe(fiber->block->block_index) +
                          ", thread " + describe(fiber->thread_index) + "]";
  for (;;) switch_to_scheduler(fiber);
}

/// Lets other threads of the block run, so that spin loops make progress.
inline void yield_now() {
  Fiber* fiber = self();
  fiber->state = State::kYielded;
  switch_to_scheduler(fiber);
}
inline void spin_hint() {
  if (++self()->spins % 64 == 0) yield_now();
}

inline void wait_block(Site site) {
  Fiber* fiber = self();
  fiber->site = site;
  fiber->state = State::kBlockBarrier;
  switch_to_scheduler(fiber);
}

inline void wait_cluster(Site site) {
  Fiber* fiber = self();
  fiber->site = site;
  fiber->state = State::kClusterBarrier;
  switch_to_scheduler(fiber);
}

/// Lets others run until something has happened in this block's shared memory.
inline void wait_event(Site site) {
  Fiber* fiber = self();
  fiber->site = site;
  fiber->state = State::kPolling;
  switch_to_scheduler(fiber);
}

/// Says that a barrier in the shared memory of block `rank` of the cluster has changed.
inline void tell_event(unsigned rank) { ++self()->block->cluster[rank].events; }

/// Where `p`, in the shared memory of the running block, lies in another block of its cluster.
inline void* in_block(void* p, unsigned rank) {
  Block* own = self()->block;
  if (rank >= own->cluster_size) fail("a cluster has no block " + std::to_string(rank));
  if (rank == own->cluster_rank) return p;
  Block& other = own->cluster[rank];
  unsigned char* byte = static_cast<unsigned char*>(p);
  if (byte >= own->dynamic_shared && byte < own->dynamic_shared + own->dynamic_shared_bytes)
    return other.dynamic_shared + (byte - own->dynamic_shared);
  if (byte >= own->static_shared && byte < own->static_shared + own->static_shared_bytes)
    return other.static_kept.data() + (byte - own->static_shared);
  fail("an address outside shared memory has no counterpart in another block");
}

// Posts `size` bytes to the warp operation of `mask`, waits until every lane of the
// mask has, and returns where all lanes' values lie (lane i at 16 * i).
inline const unsigned char* warp_exchange(const char* kind, uint32_t mask, const void* value,
                                          std::size_t size, Site site) {
  Fiber* fiber = self();
  Warp* warp = fiber->warp;
  if (!(mask >> fiber->lane & 1u))
    fail(std::string(kind) + " at " + describe(site) + ": the calling lane is not in the mask");
  mask &= warp->lanes;
  Collective* c = nullptr;
  for (int i = 0; i < warp->used && c == nullptr; ++i)
    if (warp->collectives[i].mask == mask) c = &warp->collectives[i];
  for (int i = 0; i < warp->used && c == nullptr; ++i)
    if (warp->collectives[i].arrived == 0) {  // idle: take over, keep its buffers' turn
      c = &warp->collectives[i];
      c->mask = mask;
    }
  if (c == nullptr) {
    if (warp->used == 8) fail("too many different warp masks in flight");
    c = &warp->collectives[warp->used++];
    c->mask = mask;
    c->arrived = c->generation = 0;
  }
  if (c->arrived == 0) {
    c->kind = kind;
    c->site = site;
    std::memset(c->values[c->generation & 1], 0xff, sizeof(c->values[0]));
  } else if (std::strcmp(c->kind, kind) != 0) {
    fail(std::string("lanes of one warp are at different operations: ") + c->kind + " at " +
         describe(c->site) + " and " + kind + " at " + describe(site));
  }
  const unsigned char* values = &c->values[c->generation & 1][0][0];
  if (size != 0) std::memcpy(c->values[c->generation & 1][fiber->lane], value, size);
  c->arrived |= 1u << fiber->lane;
  if (c->arrived == mask) {
    for (uint32_t rest = mask & ~(1u << fiber->lane); rest != 0; rest &= rest - 1)
      warp->fibers[__builtin_ctz(rest)]->state = State::kReady;
    c->arrived = 0;
    ++c->generation;
  } else {
    fiber->site = site;
    fiber->state = State::kWarpBarrier;
    switch_to_scheduler(fiber);
  }
  return values;
}
