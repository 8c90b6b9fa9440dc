// opforge/emulator/grid.h - runs the blocks of a grid, cluster by cluster, on host threads.
//
// Part of opforge/emulator/execution.h, which alone includes it, inside namespace opforge::emu.

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
