// opforge/cuda_emulator.h - runs simple CUDA kernels on the CPU, for checking results.
//
// A .cu file that includes opforge/device.h compiles with
//   g++ -x c++ -DOPFORGE_EMULATE ...
// and its kernels then run block by block, every CUDA thread as a fiber with its
// own small stack.  Fibers switch only at barriers and warp operations, so a run is
// deterministic; OPFORGE_EMU_SCHEDULE=forward|reverse|<seed> in the environment
// changes the order of threads, which brings missing barriers to light.
//
// Reported as errors (a Python RuntimeError) instead of hanging or passing unseen:
//   - barriers that some threads of the block do not reach, or reach elsewhere,
//   - warp operations that lanes named in the mask do not join,
//   - launch configurations that the hardware refuses,
//   - writes past the end of dynamic shared memory, misaligned Vec accesses.
// Shared memory is filled with NaN bytes before each block.
//
// The blocks of a cluster take turns on one host thread, switching at the cluster's barrier; a
// store into another block's shared memory goes through store_in_block (opforge/groups.h). They also take
// turns when all threads of one wait at barriers in shared memory (opforge/shared_barriers.h).
//
// Not covered: cluster barriers that are not waited for at once, wgmma, mma, TMA's tensor maps, inline PTX,
// textures, cooperative grid barriers, dynamic parallelism.  Nothing here says
// anything about speed on a GPU.
//
// Dynamic shared memory is declared with OPFORGE_DYNAMIC_SHARED(type, name), or
// with `extern __shared__ type name[];` if the build step rewrites that line first.
#ifndef OPFORGE_CUDA_EMULATOR_H_
#define OPFORGE_CUDA_EMULATOR_H_

#if defined(__CUDACC__)
#error "opforge/cuda_emulator.h is for host compilers only; nvcc needs no emulation"
#endif

#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

// OPFORGE_EMU_UCONTEXT selects the portable context switch (10 times slower).
#if !defined(__x86_64__) && !defined(__aarch64__) && !defined(OPFORGE_EMU_UCONTEXT)
#define OPFORGE_EMU_UCONTEXT 1
#endif
#ifdef OPFORGE_EMU_UCONTEXT
#include <ucontext.h>
#endif

#include "opforge/half.h"

// ---------------------------------------------------------------------------
// Language: qualifiers, built-in types and variables
// ---------------------------------------------------------------------------

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __managed__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// At block scope thread_local implies static.  Each host thread runs one block at
// a time, so its copy is the block's shared memory.
#define __shared__ thread_local
#define __cluster_dims__(...) \
  static_assert(false, "opforge emulator: launch clusters with OPFORGE_LAUNCH_CLUSTERS (opforge/groups.h)");

#define OPFORGE_EMU_VECTOR1(T, name) \
  struct name##1 { T x; };           \
  inline name##1 make_##name##1(T x) { return {x}; }
#define OPFORGE_EMU_VECTOR2(T, name, bytes)           \
  struct __align__(bytes) name##2 { T x, y; };        \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }
#define OPFORGE_EMU_VECTOR3(T, name) \
  struct name##3 { T x, y, z; };     \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }
#define OPFORGE_EMU_VECTOR4(T, name, bytes)           \
  struct __align__(bytes) name##4 { T x, y, z, w; };  \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
#define OPFORGE_EMU_VECTORS(T, name)                                              \
  OPFORGE_EMU_VECTOR1(T, name) OPFORGE_EMU_VECTOR2(T, name, 2 * sizeof(T))        \
  OPFORGE_EMU_VECTOR3(T, name)                                                    \
  OPFORGE_EMU_VECTOR4(T, name, (4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16))
OPFORGE_EMU_VECTORS(signed char, char)
OPFORGE_EMU_VECTORS(unsigned char, uchar)
OPFORGE_EMU_VECTORS(short, short)
OPFORGE_EMU_VECTORS(unsigned short, ushort)
OPFORGE_EMU_VECTORS(int, int)
OPFORGE_EMU_VECTORS(unsigned int, uint)
OPFORGE_EMU_VECTORS(long long, longlong)
OPFORGE_EMU_VECTORS(unsigned long long, ulonglong)
OPFORGE_EMU_VECTORS(float, float)
OPFORGE_EMU_VECTORS(double, double)

struct dim3 {
  unsigned int x, y, z;
  constexpr dim3(unsigned int x_ = 1, unsigned int y_ = 1, unsigned int z_ = 1)
      : x(x_), y(y_), z(z_) {}
};

using cudaStream_t = void*;

#define threadIdx (::opforge::emu::self()->thread_index)
#define blockIdx (::opforge::emu::self()->block->block_index)
#define blockDim (::opforge::emu::self()->block->block_dim)
#define gridDim (::opforge::emu::self()->block->grid_dim)
constexpr int warpSize = 32;

namespace opforge {
namespace emu {

// ---------------------------------------------------------------------------
// Fibers
// ---------------------------------------------------------------------------

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

// ---------------------------------------------------------------------------
// Running a grid
// ---------------------------------------------------------------------------

// What one host thread needs to run blocks: stacks, shared memory, the warps.
struct Worker {
  unsigned char* stacks = nullptr;
  unsigned char* shared = nullptr;
  std::vector<Warp> warps;
  Worker* next = nullptr;
  const bool guarded;
  unsigned guards_set = 0;

  // Each guard page splits a mapping, and a process may have 65530: the other blocks of a cluster run the
  // same code on stacks as deep as the first one's, and do without.
  explicit Worker(bool guards) : warps(kMaxThreads / 32), guarded(guards) {
    const std::size_t bytes = kStackBytes * (kMaxThreads + 1);
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::runtime_error("opforge emulator: no memory for stacks");
    stacks = reinterpret_cast<unsigned char*>(
        (reinterpret_cast<uintptr_t>(p) + kStackBytes - 1) & ~uintptr_t(kStackBytes - 1));
    shared = static_cast<unsigned char*>(aligned_alloc(1024, kMaxSharedBytes + 1024));
    if (shared == nullptr) throw std::runtime_error("opforge emulator: no shared memory");
  }

  // An overflow of one of the first `threads` stacks hits an inaccessible page, not the next fiber.
  void guard(unsigned threads) {
    for (; guarded && guards_set < threads; ++guards_set) mprotect(stacks + kStackBytes * guards_set, 4096, PROT_NONE);
  }

  Fiber* fiber(unsigned i) {
    return reinterpret_cast<Fiber*>(stacks + kStackBytes * (i + 1) - sizeof(Fiber));
  }

  // Workers are kept for the next launch; there are as many as ever ran at once.
  static std::atomic_flag& lock() {
    static std::atomic_flag flag = ATOMIC_FLAG_INIT;
    return flag;
  }
  static Worker*& free_list(bool guarded) {
    static Worker* heads[2] = {nullptr, nullptr};
    return heads[guarded];
  }
  static Worker* acquire(bool guarded) {
    while (lock().test_and_set(std::memory_order_acquire)) {
    }
    Worker* worker = free_list(guarded);
    if (worker != nullptr) free_list(guarded) = worker->next;
    lock().clear(std::memory_order_release);
    return worker != nullptr ? worker : new Worker(guarded);
  }
  static void release(Worker* worker) {
    while (lock().test_and_set(std::memory_order_acquire)) {
    }
    worker->next = free_list(worker->guarded);
    free_list(worker->guarded) = worker;
    lock().clear(std::memory_order_release);
  }
};

// The calling thread's copy of this library's thread-local data: all of it belongs
// to __shared__ variables (the emulator itself keeps none but the anchor).
struct StaticShared {
  void* data = nullptr;
  std::size_t bytes = 0;

  static StaticShared find() {
    static thread_local volatile char anchor;
    anchor = 1;  // makes the loader allocate the block for this thread
    StaticShared found;
    dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t size, void* out) {
          if (size < offsetof(dl_phdr_info, dlpi_tls_data) + sizeof(void*)) return 0;
          for (int i = 0; i < info->dlpi_phnum; ++i) {
            const auto& segment = info->dlpi_phdr[i];
            if (segment.p_type != PT_TLS || info->dlpi_tls_data == nullptr) continue;
            const char* first = static_cast<const char*>(info->dlpi_tls_data);
            const char* here = const_cast<const char*>(&anchor);
            if (here < first || here >= first + segment.p_memsz) continue;
            static_cast<StaticShared*>(out)->data = info->dlpi_tls_data;
            static_cast<StaticShared*>(out)->bytes = segment.p_memsz;
            return 1;
          }
          return 0;
        },
        &found);
    return found;
  }
};

/// Order in which threads get their turn; from OPFORGE_EMU_SCHEDULE.
inline std::vector<uint16_t> schedule(unsigned count) {
  std::vector<uint16_t> order(count);
  for (unsigned i = 0; i < count; ++i) order[i] = static_cast<uint16_t>(i);
  const char* setting = std::getenv("OPFORGE_EMU_SCHEDULE");
  if (setting == nullptr || std::strcmp(setting, "forward") == 0) return order;
  uint64_t seed = std::strtoull(setting, nullptr, 10);
  for (unsigned i = count; i-- > 1;) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    const unsigned other = setting[0] == 'r' ? count - 1 - i : unsigned((seed >> 33) % (i + 1));
    if (setting[0] == 'r' && other >= i) break;
    std::swap(order[i], order[other]);
  }
  return order;
}

// Makes the threads of a block ready to begin.
inline void begin_block(Worker& worker, Block& block) {
  const unsigned threads = block.block_dim.x * block.block_dim.y * block.block_dim.z;
  const unsigned warps = (threads + 31) / 32;
  for (unsigned w = 0; w < warps; ++w) {
    const unsigned lanes = threads - 32 * w < 32 ? threads - 32 * w : 32;
    worker.warps[w].lanes = lanes == 32 ? 0xffffffffu : (1u << lanes) - 1u;
    worker.warps[w].used = 0;
  }
  for (unsigned i = 0; i < threads; ++i) {
    Fiber* fiber = worker.fiber(i);
    fiber->thread_index = {i % block.block_dim.x, i / block.block_dim.x % block.block_dim.y,
                           i / (block.block_dim.x * block.block_dim.y)};
    fiber->block = &block;
    fiber->warp = &worker.warps[i / 32];
    fiber->lane = i % 32;
    fiber->warp->fibers[i % 32] = fiber;
    fiber->spins = 0;
    fiber->state = State::kReady;
#ifdef OPFORGE_EMU_UCONTEXT
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = worker.stacks + kStackBytes * i;
    fiber->context.uc_stack.ss_size =
        (reinterpret_cast<uintptr_t>(fiber) & ~uintptr_t(63)) % kStackBytes;
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, reinterpret_cast<void (*)()>(&fiber_main), 0);
#else
    // The first switch pops zeroed registers and returns into fiber_main.
    void** top = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(fiber) & ~uintptr_t(63));
#if defined(__x86_64__)
    top[-1] = nullptr;  // fiber_main's return address: never used, keeps the alignment
    top[-2] = reinterpret_cast<void*>(&fiber_main);
    for (int r = 3; r <= 8; ++r) top[-r] = nullptr;
    fiber->stack_pointer = top - 8;
#else
    for (int r = 1; r <= 20; ++r) top[-r] = nullptr;
    top[-20 + 11] = reinterpret_cast<void*>(&fiber_main);  // x30
    fiber->stack_pointer = top - 20;
#endif
#endif
  }
}

enum class Advance : uint8_t { kFailed, kEnded, kAtCluster, kPolling };

// Runs one block to its end, to the barrier of its cluster, or until it waits for changes of its shared memory that it cannot
// make itself; kFailed: block.error says why.
inline Advance advance_block(Worker& worker, Block& block, const std::vector<uint16_t>& warp_order,
                             const std::vector<uint16_t>& lane_order) {
  const unsigned threads = block.block_dim.x * block.block_dim.y * block.block_dim.z;
  const unsigned warps = (threads + 31) / 32;
  for (;;) {
    bool progress = false;
    unsigned done = 0, at_barrier = 0, at_cluster = 0, polling = 0;
    const uint64_t seen = block.events;
    for (unsigned w = 0; w < warps; ++w) {
      Warp& warp = worker.warps[warp_order[w]];
      // Run this warp until none of its lanes can go on without the others.
      for (bool ran = true; ran;) {
        ran = false;
        for (unsigned l = 0; l < 32; ++l) {
          const unsigned lane = lane_order[l];
          if (!(warp.lanes >> lane & 1u)) continue;
          Fiber* fiber = warp.fibers[lane];
          if (fiber->state != State::kReady) continue;
          switch_to_fiber(fiber);
          if (!block.error.empty()) return Advance::kFailed;
          ran = progress = true;
        }
      }
      for (uint32_t rest = warp.lanes; rest != 0; rest &= rest - 1) {
        Fiber* fiber = warp.fibers[__builtin_ctz(rest)];
        if (fiber->state == State::kYielded) fiber->state = State::kReady;
        done += fiber->state == State::kDone;
        at_barrier += fiber->state == State::kBlockBarrier;
        at_cluster += fiber->state == State::kClusterBarrier;
        polling += fiber->state == State::kPolling;
      }
    }
    if (polling != 0 && block.events != seen) {
      for (unsigned i = 0; i < threads; ++i)
        if (worker.fiber(i)->state == State::kPolling) worker.fiber(i)->state = State::kReady;
      continue;
    }
    if (done == threads) return Advance::kEnded;
    if (at_cluster == threads) return Advance::kAtCluster;
#ifdef OPFORGE_EMU_ALLOW_EARLY_EXIT
    const bool all_arrived = at_barrier != 0 && at_barrier + done == threads;
#else
    const bool all_arrived = at_barrier == threads;
#endif
    if (all_arrived) {
      const Fiber* first = nullptr;
      for (unsigned i = 0; i < threads; ++i) {
        Fiber* fiber = worker.fiber(i);
        if (fiber->state != State::kBlockBarrier) continue;
        if (first == nullptr) first = fiber;
        if (fiber->site.line != first->site.line ||
            std::strcmp(fiber->site.file, first->site.file) != 0) {
          block.error = "threads of one block wait at different barriers: thread " +
                        describe(first->thread_index) + " at " + describe(first->site) +
                        ", thread " + describe(fiber->thread_index) + " at " +
                        describe(fiber->site) + " [block " + describe(block.block_index) + "]";
          return Advance::kFailed;
        }
        fiber->state = State::kReady;
      }
      block.count_result = block.count_now;
      block.count_now = 0;
      continue;
    }
    if (progress) {
      bool ready = false;
      for (unsigned i = 0; i < threads && !ready; ++i)
        ready = worker.fiber(i)->state == State::kReady;
      if (ready) continue;
    }
    if (polling != 0) return Advance::kPolling;
    // Nothing can run: name one waiting thread, and one that will never come.
    const Fiber *waiting = nullptr, *absent = nullptr;
    for (unsigned i = 0; i < threads; ++i) {
      const Fiber* fiber = worker.fiber(i);
      if (fiber->state == State::kWarpBarrier ||
          ((fiber->state == State::kBlockBarrier || fiber->state == State::kClusterBarrier) && waiting == nullptr))
        waiting = fiber;
    }
    for (unsigned i = 0; i < threads && waiting != nullptr && absent == nullptr; ++i) {
      const Fiber* fiber = worker.fiber(i);
      if (fiber->state == waiting->state) continue;
      if (waiting->state != State::kWarpBarrier || fiber->warp == waiting->warp) absent = fiber;
    }
    block.error =
        std::string("deadlock: ") +
        (waiting == nullptr ? "no thread can run"
                            : "thread " + describe(waiting->thread_index) + " waits at " +
                                  (waiting->state == State::kBlockBarrier     ? "the block barrier "
                                   : waiting->state == State::kClusterBarrier ? "the cluster barrier "
                                                                              : "the warp operation ") +
                                  describe(waiting->site)) +
        (absent == nullptr ? ""
         : absent->state == State::kDone
             ? ", thread " + describe(absent->thread_index) + " has exited"
             : ", thread " + describe(absent->thread_index) + " waits at " +
                   describe(absent->site)) +
        " [block " + describe(block.block_index) + "]";
    return Advance::kFailed;
  }
}

// Runs the blocks of one cluster in turn to their end; false if one failed (its error says why).
inline bool run_cluster(Worker** workers, Block* blocks, unsigned count, const std::vector<uint16_t>& warp_order,
                        const std::vector<uint16_t>& lane_order) {
  const unsigned threads = blocks[0].block_dim.x * blocks[0].block_dim.y * blocks[0].block_dim.z;
  std::vector<Advance> stands(count, Advance::kPolling);
  for (unsigned c = 0; c < count; ++c) begin_block(*workers[c], blocks[c]);
  for (;;) {
    unsigned ended = 0, polling = 0;
    uint64_t before = 0, after = 0;
    for (unsigned c = 0; c < count; ++c) before += blocks[c].events;
    bool moved = false;
    for (unsigned c = 0; c < count; ++c) {
      Block& block = blocks[c];
      if (stands[c] == Advance::kPolling) {
        for (unsigned i = 0; i < threads; ++i)
          if (workers[c]->fiber(i)->state == State::kPolling) workers[c]->fiber(i)->state = State::kReady;
        if (count > 1 && block.static_shared_bytes != 0)
          std::memcpy(block.static_shared, block.static_kept.data(), block.static_shared_bytes);
        stands[c] = advance_block(*workers[c], block, warp_order, lane_order);
        if (count > 1 && block.static_shared_bytes != 0)
          std::memcpy(block.static_kept.data(), block.static_shared, block.static_shared_bytes);
        moved |= stands[c] != Advance::kPolling;
      }
      if (stands[c] == Advance::kFailed) {
        blocks[0].error = block.error;
        return false;
      }
      ended += stands[c] == Advance::kEnded;
      polling += stands[c] == Advance::kPolling;
    }
    if (ended == count) return true;
    if (polling != 0) {
      for (unsigned c = 0; c < count; ++c) after += blocks[c].events;
      if (moved || before != after) continue;
      for (unsigned c = 0; c < count; ++c)
        for (unsigned i = 0; i < threads && blocks[0].error.empty(); ++i) {
          const Fiber* fiber = workers[c]->fiber(i);
          if (fiber->state != State::kPolling) continue;
          blocks[0].error = "deadlock: thread " + describe(fiber->thread_index) + " waits at " + describe(fiber->site) +
                            " for a barrier in shared memory that nobody completes [block " + describe(blocks[c].block_index) + "]";
        }
      return false;
    }
    if (ended != 0) {
      blocks[0].error = std::to_string(ended) + " of the " + std::to_string(count) +
                        " blocks of a cluster ended while the others wait at its barrier";
      return false;
    }
    for (unsigned c = 0; c < count; ++c) {
      stands[c] = Advance::kPolling;
      for (unsigned i = 0; i < threads; ++i) workers[c]->fiber(i)->state = State::kReady;
    }
  }
}

inline void run_grid(const char* name, dim3 grid, dim3 block_dim, std::size_t shared_bytes,
                     unsigned cluster, void (*entry)(void*), void* argument) {
  const uint64_t threads = uint64_t(block_dim.x) * block_dim.y * block_dim.z;
  const auto refuse = [&](const char* why) {
    throw std::runtime_error("CUDA emulator: " + std::string(name) + ": " + why);
  };
  if (threads == 0 || threads > kMaxThreads || block_dim.z > 64)
    refuse("invalid configuration: a block has 1 to 1024 threads, at most 64 in z");
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 2147483647u || grid.y > 65535u ||
      grid.z > 65535u)
    refuse("invalid configuration: grid must be 1 to 2^31-1 in x, 1 to 65535 in y and z");
  if (shared_bytes > kMaxSharedBytes) refuse("more than 227 KiB of dynamic shared memory");
  if (cluster == 0 || cluster > kMaxCluster || grid.x % cluster != 0)
    refuse("a cluster has 1 to 16 blocks, and a grid a whole number of clusters in x");

  const std::vector<uint16_t> warp_order = schedule(static_cast<unsigned>((threads + 31) / 32));
  const std::vector<uint16_t> lane_order = schedule(32);
  const int64_t clusters = int64_t(grid.x) * grid.y * grid.z / cluster;
  std::atomic<bool> failed{false};
  std::string error;
#ifdef _OPENMP
#pragma omp parallel if (clusters > 1)
#endif
  {
    const StaticShared static_shared = StaticShared::find();
    Worker* workers[kMaxCluster];
    std::vector<Block> blocks(cluster);
    for (unsigned c = 0; c < cluster; ++c) {
      workers[c] = Worker::acquire(c == 0);
      workers[c]->guard(static_cast<unsigned>(threads));
      Block& block = blocks[c];
      block.block_dim = block_dim;
      block.grid_dim = grid;
      block.dynamic_shared = workers[c]->shared;
      block.dynamic_shared_bytes = shared_bytes;
      block.entry = entry;
      block.argument = argument;
      block.cluster_rank = c;
      block.cluster_size = cluster;
      block.cluster = blocks.data();
      block.events = 0;
      block.static_shared = static_cast<unsigned char*>(static_shared.data);
      block.static_shared_bytes = static_shared.bytes;
      if (cluster > 1) block.static_kept.resize(static_shared.bytes);
      std::memset(workers[c]->shared + shared_bytes, 0xa5, 256);
    }
#ifdef _OPENMP
#pragma omp for schedule(dynamic, 1)
#endif
    for (int64_t k = 0; k < clusters; ++k) {
      if (failed.load(std::memory_order_relaxed)) continue;
      for (unsigned c = 0; c < cluster; ++c) {
        const int64_t b = k * cluster + c;
        Block& block = blocks[c];
        block.block_index = {static_cast<unsigned>(b % grid.x),
                             static_cast<unsigned>(b / grid.x % grid.y),
                             static_cast<unsigned>(b / grid.x / grid.y)};
        std::memset(block.dynamic_shared, 0xff, shared_bytes);
        std::fill(block.static_kept.begin(), block.static_kept.end(), 0xff);
      }
      if (static_shared.bytes != 0) std::memset(static_shared.data, 0xff, static_shared.bytes);
      bool ok = run_cluster(workers, blocks.data(), cluster, warp_order, lane_order);
      for (unsigned c = 0; c < cluster; ++c)
        for (int i = 0; ok && i < 256; ++i)
          if (workers[c]->shared[shared_bytes + i] != 0xa5) {
            blocks[0].error = "wrote past the end of dynamic shared memory [block " +
                              describe(blocks[c].block_index) + "]";
            ok = false;
          }
      if (!ok && !failed.exchange(true)) error = blocks[0].error;
    }
    for (unsigned c = 0; c < cluster; ++c) Worker::release(workers[c]);
  }
  if (failed) throw std::runtime_error("CUDA emulator: " + std::string(name) + ": " + error);
}

/// Runs call(args...) once per CUDA thread of the grid, whose blocks form clusters.
template <typename Call, typename... Args>
inline void launch_clusters(const char* name, dim3 grid, dim3 block, std::size_t shared_bytes, unsigned cluster,
                            const Call& call, Args... args) {
  auto thread = [&]() { call(args...); };
  using Thread = decltype(thread);
  run_grid(
      name, grid, block, shared_bytes, cluster, [](void* t) { (*static_cast<Thread*>(t))(); }, &thread);
}

/// The same for a grid of single blocks.
template <typename Call, typename... Args>
inline void launch(const char* name, dim3 grid, dim3 block, std::size_t shared_bytes,
                   const Call& call, Args... args) {
  launch_clusters(name, grid, block, shared_bytes, 1, call, args...);
}

/// The dynamic shared memory of the running block.
template <typename T>
inline T* dynamic_shared() {
  return reinterpret_cast<T*>(self()->block->dynamic_shared);
}

}  // namespace emu
}  // namespace opforge

// ---------------------------------------------------------------------------
// Barriers, fences, votes, shuffles
// ---------------------------------------------------------------------------

#define OPFORGE_EMU_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(OPFORGE_EMU_HERE) { ::opforge::emu::wait_block({file, line}); }
inline int __syncthreads_count(int predicate, OPFORGE_EMU_HERE) {
  ::opforge::emu::Block* block = ::opforge::emu::self()->block;
  block->count_now += predicate != 0;
  ::opforge::emu::wait_block({file, line});
  return static_cast<int>(block->count_result);
}
inline int __syncthreads_or(int predicate, OPFORGE_EMU_HERE) {
  return __syncthreads_count(predicate, file, line) != 0;
}
inline int __syncthreads_and(int predicate, OPFORGE_EMU_HERE) {
  return __syncthreads_count(!predicate, file, line) == 0;
}
inline void __syncwarp(unsigned mask = 0xffffffffu, OPFORGE_EMU_HERE) {
  ::opforge::emu::warp_exchange("__syncwarp", mask, nullptr, 0, {file, line});
}
inline void __threadfence_block() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  ::opforge::emu::spin_hint();
}
inline void __threadfence_system() { __threadfence(); }
inline void __nanosleep(unsigned) { ::opforge::emu::yield_now(); }
inline unsigned __activemask() { return ::opforge::emu::self()->warp->lanes; }

namespace opforge {
namespace emu {
// Value of `source` lane; the own value where the shuffle leaves its segment.
template <typename T>
inline T shuffle(const char* kind, unsigned mask, T value, int source, bool inside, Site site) {
  static_assert(sizeof(T) <= 16, "shuffles move at most 16 bytes here");
  const unsigned char* values = warp_exchange(kind, mask, &value, sizeof(T), site);
  if (inside) std::memcpy(&value, values + 16 * source, sizeof(T));
  return value;
}
}  // namespace emu
}  // namespace opforge

template <typename T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, OPFORGE_EMU_HERE) {
  const int lane = static_cast<int>(::opforge::emu::self()->lane);
  const int from = (lane & ~(width - 1)) | (source & (width - 1));
  return ::opforge::emu::shuffle("__shfl_sync", mask, value, from, true, {file, line});
}
template <typename T>
inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32,
                         OPFORGE_EMU_HERE) {
  const int lane = static_cast<int>(::opforge::emu::self()->lane);
  const int from = lane ^ lane_mask;
  return ::opforge::emu::shuffle("__shfl_xor_sync", mask, value, from & 31,
                                 from < (lane & ~(width - 1)) + width, {file, line});
}
template <typename T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                          OPFORGE_EMU_HERE) {
  const int lane = static_cast<int>(::opforge::emu::self()->lane);
  const int from = lane + static_cast<int>(delta);
  return ::opforge::emu::shuffle("__shfl_down_sync", mask, value, from & 31,
                                 from < (lane & ~(width - 1)) + width, {file, line});
}
template <typename T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                        OPFORGE_EMU_HERE) {
  const int lane = static_cast<int>(::opforge::emu::self()->lane);
  const int from = lane - static_cast<int>(delta);
  return ::opforge::emu::shuffle("__shfl_up_sync", mask, value, from & 31,
                                 from >= (lane & ~(width - 1)), {file, line});
}
inline unsigned __ballot_sync(unsigned mask, int predicate, OPFORGE_EMU_HERE) {
  const int own = predicate != 0;
  const unsigned char* values =
      ::opforge::emu::warp_exchange("__ballot_sync", mask, &own, sizeof(own), {file, line});
  unsigned result = 0;
  const unsigned lanes = mask & ::opforge::emu::self()->warp->lanes;
  for (unsigned i = 0; i < 32; ++i)
    if ((lanes >> i & 1u) && values[16 * i] == 1) result |= 1u << i;
  return result;
}
inline int __any_sync(unsigned mask, int predicate, OPFORGE_EMU_HERE) {
  return __ballot_sync(mask, predicate, file, line) != 0;
}
inline int __all_sync(unsigned mask, int predicate, OPFORGE_EMU_HERE) {
  return __ballot_sync(mask, !predicate, file, line) == 0;
}

namespace opforge {
namespace emu {
template <typename T, typename Op>
inline T warp_fold(const char* kind, unsigned mask, T value, Op op, Site site) {
  const unsigned char* values = warp_exchange(kind, mask, &value, sizeof(T), site);
  const unsigned lanes = mask & self()->warp->lanes;
  bool first = true;
  for (unsigned i = 0; i < 32; ++i) {
    if (!(lanes >> i & 1u)) continue;
    T other;
    std::memcpy(&other, values + 16 * i, sizeof(T));
    value = first ? other : op(value, other);
    first = false;
  }
  return value;
}
}  // namespace emu
}  // namespace opforge
#define OPFORGE_EMU_REDUCE(name, expression)                                           \
  template <typename T>                                                                \
  inline T name(unsigned mask, T value, OPFORGE_EMU_HERE) {                            \
    return ::opforge::emu::warp_fold(                                                  \
        #name, mask, value, [](T a, T b) -> T { return expression; }, {file, line});   \
  }
OPFORGE_EMU_REDUCE(__reduce_add_sync, a + b)
OPFORGE_EMU_REDUCE(__reduce_min_sync, a < b ? a : b)
OPFORGE_EMU_REDUCE(__reduce_max_sync, a > b ? a : b)
OPFORGE_EMU_REDUCE(__reduce_and_sync, a & b)
OPFORGE_EMU_REDUCE(__reduce_or_sync, a | b)
OPFORGE_EMU_REDUCE(__reduce_xor_sync, a ^ b)

// ---------------------------------------------------------------------------
// Atomics (blocks may run on several host threads)
// ---------------------------------------------------------------------------

namespace opforge {
namespace emu {
template <std::size_t Bytes>
struct Bits;
template <>
struct Bits<2> { using type = uint16_t; };
template <>
struct Bits<4> { using type = uint32_t; };
template <>
struct Bits<8> { using type = uint64_t; };

template <typename T, typename Op>
inline T atomic_update(T* address, Op op) {
  using B = typename Bits<sizeof(T)>::type;
  B* bits = reinterpret_cast<B*>(address);
  B old = __atomic_load_n(bits, __ATOMIC_RELAXED);
  for (;;) {
    const T before = ::opforge::detail::bit_cast<T>(old);
    const T after = op(before);
    if (__atomic_compare_exchange_n(bits, &old, ::opforge::detail::bit_cast<B>(after), false,
                                    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
      return before;
  }
}
template <typename T>
struct Identity { using type = T; };
template <typename T>
using identity_t = typename Identity<T>::type;
}  // namespace emu
}  // namespace opforge

#define OPFORGE_EMU_ATOMIC(name, expression)                                         \
  template <typename T>                                                              \
  inline T name(T* address, ::opforge::emu::identity_t<T> b) {                       \
    return ::opforge::emu::atomic_update(address, [b](T a) -> T { return expression; }); \
  }
OPFORGE_EMU_ATOMIC(atomicAdd, T(a + b))
OPFORGE_EMU_ATOMIC(atomicSub, T(a - b))
OPFORGE_EMU_ATOMIC(atomicMax, (a > b ? a : b))
OPFORGE_EMU_ATOMIC(atomicMin, (a < b ? a : b))
OPFORGE_EMU_ATOMIC(atomicAnd, (a & b))
OPFORGE_EMU_ATOMIC(atomicOr, (a | b))
OPFORGE_EMU_ATOMIC(atomicXor, (a ^ b))
OPFORGE_EMU_ATOMIC(atomicInc, (a >= b ? T(0) : T(a + 1)))
OPFORGE_EMU_ATOMIC(atomicDec, (a == T(0) || a > b ? b : T(a - 1)))
template <typename T>
inline T atomicExch(T* address, ::opforge::emu::identity_t<T> value) {
  ::opforge::emu::spin_hint();
  return ::opforge::emu::atomic_update(address, [value](T) -> T { return value; });
}
template <typename T>
inline T atomicCAS(T* address, ::opforge::emu::identity_t<T> compare,
                   ::opforge::emu::identity_t<T> value) {
  ::opforge::emu::spin_hint();
  return ::opforge::emu::atomic_update(
      address, [compare, value](T a) -> T { return a == compare ? value : a; });
}

// ---------------------------------------------------------------------------
// Arithmetic intrinsics
// ---------------------------------------------------------------------------

template <typename T>
inline T __ldg(const T* p) { return *p; }
template <typename T>
inline T __ldcs(const T* p) { return *p; }
template <typename T>
inline T __ldcg(const T* p) { return *p; }
template <typename T>
inline T __ldca(const T* p) { return *p; }
template <typename T>
inline void __stcs(T* p, ::opforge::emu::identity_t<T> value) { *p = value; }
template <typename T>
inline void __stcg(T* p, ::opforge::emu::identity_t<T> value) { *p = value; }

using std::max;
using std::min;
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __sinf(float x) { return std::sin(x); }
inline float __cosf(float x) { return std::cos(x); }
inline float __powf(float x, float y) { return std::pow(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __frsqrt_rn(float x) { return 1.0f / std::sqrt(x); }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
inline float __int_as_float(int x) { return ::opforge::detail::bit_cast<float>(x); }
inline int __float_as_int(float x) { return ::opforge::detail::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return ::opforge::detail::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return ::opforge::detail::bit_cast<unsigned>(x); }
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline int __float2int_rz(float x) { return static_cast<int>(x); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __brev(unsigned x) {
  unsigned r = 0;
  for (int i = 0; i < 32; ++i) r |= (x >> i & 1u) << (31 - i);
  return r;
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<uint64_t>(a) * b) >> 32);
}
inline unsigned umin(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned umax(unsigned a, unsigned b) { return a > b ? a : b; }

// ---------------------------------------------------------------------------
// float16 and bfloat16 under CUDA's names
// ---------------------------------------------------------------------------

using __half = ::opforge::Float16;
using half = __half;
using __nv_bfloat16 = ::opforge::BFloat16;
using nv_bfloat16 = __nv_bfloat16;
inline float __half2float(__half v) { return v; }
inline __half __float2half(float v) { return __half(v); }
inline __half __float2half_rn(float v) { return __half(v); }
inline float __bfloat162float(__nv_bfloat16 v) { return v; }
inline __nv_bfloat16 __float2bfloat16(float v) { return __nv_bfloat16(v); }
inline __nv_bfloat16 __float2bfloat16_rn(float v) { return __nv_bfloat16(v); }
inline unsigned short __half_as_ushort(__half v) { return v.bits; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 v) { return v.bits; }
inline __half __ushort_as_half(unsigned short v) { __half r; r.bits = v; return r; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short v) {
  __nv_bfloat16 r;
  r.bits = v;
  return r;
}

#define OPFORGE_EMU_PAIR(T, T2, to_float2, from_float2, from_floats, pair, low, high, low_f, high_f) \
  struct __align__(4) T2 {                                                                  \
    T x, y;                                                                                 \
    T2() = default;                                                                         \
    T2(T a, T b) : x(a), y(b) {}                                                            \
  };                                                                                        \
  inline float2 to_float2(T2 v) { return {float(v.x), float(v.y)}; }                        \
  inline T2 from_float2(float2 v) { return T2(T(v.x), T(v.y)); }                            \
  inline T2 from_floats(float a, float b) { return T2(T(a), T(b)); }                        \
  inline T2 pair(T a, T b) { return T2(a, b); }                                             \
  inline T low(T2 v) { return v.x; }                                                        \
  inline T high(T2 v) { return v.y; }                                                       \
  inline float low_f(T2 v) { return v.x; }                                                  \
  inline float high_f(T2 v) { return v.y; }                                                 \
  inline T2 __hadd2(T2 a, T2 b) { return T2(T(float(a.x) + float(b.x)), T(float(a.y) + float(b.y))); } \
  inline T2 __hmul2(T2 a, T2 b) { return T2(T(float(a.x) * float(b.x)), T(float(a.y) * float(b.y))); } \
  inline T2 __hfma2(T2 a, T2 b, T2 c) {                                                     \
    return T2(T(std::fma(float(a.x), float(b.x), float(c.x))),                              \
              T(std::fma(float(a.y), float(b.y), float(c.y))));                             \
  }                                                                                         \
  inline T __hadd(T a, T b) { return T(float(a) + float(b)); }                              \
  inline T __hsub(T a, T b) { return T(float(a) - float(b)); }                              \
  inline T __hmul(T a, T b) { return T(float(a) * float(b)); }                              \
  inline T __hdiv(T a, T b) { return T(float(a) / float(b)); }                              \
  inline T __hfma(T a, T b, T c) { return T(std::fma(float(a), float(b), float(c))); }      \
  inline T __hmax(T a, T b) { return T(std::fmax(float(a), float(b))); }                    \
  inline T __hmin(T a, T b) { return T(std::fmin(float(a), float(b))); }                    \
  inline bool __hgt(T a, T b) { return float(a) > float(b); }                               \
  inline bool __hlt(T a, T b) { return float(a) < float(b); }
OPFORGE_EMU_PAIR(__half, __half2, __half22float2, __float22half2_rn, __floats2half2_rn,
                 __halves2half2, __low2half, __high2half, __low2float, __high2float)
OPFORGE_EMU_PAIR(__nv_bfloat16, __nv_bfloat162, __bfloat1622float2, __float22bfloat162_rn,
                 __floats2bfloat162_rn, __halves2bfloat162, __low2bfloat16, __high2bfloat16,
                 __low2float, __high2float)
using half2 = __half2;
using nv_bfloat162 = __nv_bfloat162;

#endif  // OPFORGE_CUDA_EMULATOR_H_
