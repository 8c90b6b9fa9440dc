// opforge/arch/hopper.h - Hopper's asynchronous copies (TMA), barriers in shared memory, clusters and warpgroup products.
//
// Device code here is sm_90a only: the file that includes it says `arch = "sm_90a"` and is refused elsewhere, by the CPU
// emulator too.  Each device function is one PTX instruction or the loop that belongs to it.
//
// source    PTX ISA 8.0 and later: cp.async.bulk.tensor, mbarrier, wgmma, setmaxnreg; CUDA driver API, tensor map objects
#ifndef OPFORGE_HOPPER_H_
#define OPFORGE_HOPPER_H_

#ifdef OPFORGE_EMULATE
#error "opforge/hopper.h needs sm_90a: the CPU emulator has no TMA and no wgmma"
#endif

#include <cuda.h>

#include "opforge/numeric/fp8_device.h"
#include "opforge/arch/tensor_core.h"

namespace opforge {
namespace hopper {

// ---------------------------------------------------------------------------
// Tensor maps (host)
// ---------------------------------------------------------------------------

// how many bytes the second-level cache asks memory for where a box wants some of them: 256 cost a stream of 134 MB five percent
constexpr CUtensorMapL2promotion kPromotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B;

constexpr int kBox = 64;  // a box is 64 x 64 16-bit elements: rows of 128 bytes, as wide as the widest swizzle
constexpr int kBoxBytes = kBox * kBox * 2;

/// The driver's cuTensorMapEncodeTiled, found through the runtime: nothing has to be linked against libcuda.
inline decltype(&cuTensorMapEncodeTiled) tensor_map_encoder() {
  static const auto found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result), "cuTensorMapEncodeTiled");
#else
    check_cuda(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &result), "cuTensorMapEncodeTiled");
#endif
    OPFORGE_CHECK(result == cudaDriverEntryPointSuccess && function != nullptr, RuntimeError,
                  "this driver has no cuTensorMapEncodeTiled; install a driver of CUDA 12 or newer");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  return found;
}

/// How the rows of a box are swizzled in shared memory: those of 128, 64 and 32 bytes are, others lie one behind another.
constexpr CUtensorMapSwizzle swizzle_of(int row_bytes) {
  return row_bytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B
         : row_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
         : row_bytes == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                           : CU_TENSOR_MAP_SWIZZLE_NONE;
}

/// Describes a matrix of elements of `size` bytes to the TMA in boxes of `box_rows` rows of `row_bytes`: `inner` contiguous
/// elements in each of `outer` rows that lie `pitch` elements apart.  What a box has beyond an edge is read as zero and never written.
inline CUtensorMap describe_matrix(const void* data, CUtensorMapDataType type, int64_t inner, int64_t outer, int64_t pitch, int box_rows = kBox, int size = 2,
                                   int row_bytes = 128) {
  CUtensorMap map;
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(inner), static_cast<cuuint64_t>(outer)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(pitch) * size};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(row_bytes / size), static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  const CUresult status =
      tensor_map_encoder()(&map, type, 2, const_cast<void*>(data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                           swizzle_of(row_bytes), kPromotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  OPFORGE_CHECK(status == CUDA_SUCCESS, RuntimeError, "cuTensorMapEncodeTiled refuses a matrix of ", outer, " rows of ", inner,
                " elements, ", pitch, " apart (CUresult ", static_cast<int>(status), ")");
  return map;
}

/// Describes `count` such matrices of 16-bit elements, `apart` elements from one to the next: boxes of rows of one of them.
inline CUtensorMap describe_matrices(const void* data, CUtensorMapDataType type, int64_t inner, int64_t outer, int64_t pitch, int64_t count, int64_t apart,
                                     int box_rows = kBox, int row_bytes = 128) {
  CUtensorMap map;
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(inner), static_cast<cuuint64_t>(outer), static_cast<cuuint64_t>(count)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(pitch) * 2, static_cast<cuuint64_t>(apart) * 2};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(row_bytes / 2), static_cast<cuuint32_t>(box_rows), 1};
  const cuuint32_t steps[3] = {1, 1, 1};
  const CUresult status =
      tensor_map_encoder()(&map, type, 3, const_cast<void*>(data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                           swizzle_of(row_bytes), kPromotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  OPFORGE_CHECK(status == CUDA_SUCCESS, RuntimeError, "cuTensorMapEncodeTiled refuses ", count, " matrices of ", outer, " rows of ", inner,
                " elements, rows ", pitch, " and matrices ", apart, " apart (CUresult ", static_cast<int>(status), ")");
  return map;
}

template <typename T>
constexpr CUtensorMapDataType kMapType = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
template <>
constexpr CUtensorMapDataType kMapType<bfloat16_t> = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
// the TMA moves bytes of FP8 without knowing what they mean
template <>
constexpr CUtensorMapDataType kMapType<float8_e4m3_t> = CU_TENSOR_MAP_DATA_TYPE_UINT8;
template <>
constexpr CUtensorMapDataType kMapType<float8_e5m2_t> = CU_TENSOR_MAP_DATA_TYPE_UINT8;

// ---------------------------------------------------------------------------
// Clusters and registers
// ---------------------------------------------------------------------------

/// Every thread of the cluster waits for every other; what they wrote before is seen after.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

/// Waits until the kernels before this one in the stream have ended and their writes can be seen (launched with
/// programmatic stream serialization; otherwise they have).
__device__ __forceinline__ void wait_for_prior_kernels() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
/// Lets the next kernel's blocks start once every block of this one has said so or ended.
__device__ __forceinline__ void launch_dependent_kernels() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

/// Gives registers of this warpgroup back (`count` remain to each thread), or takes as many.
template <int count>
__device__ __forceinline__ void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
__device__ __forceinline__ void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

/// A barrier of `threads` threads of this block, by number (0 is __syncthreads).
__device__ __forceinline__ void named_barrier(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/// Counts these threads at such a barrier without waiting there.
__device__ __forceinline__ void arrive_at_named_barrier(int number, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// ---------------------------------------------------------------------------
// Barriers in shared memory
// ---------------------------------------------------------------------------

using Barrier = uint64_t;

/// A barrier whose phase ends after `count` arrivals (and all expected bytes).
__device__ __forceinline__ void init_barrier(Barrier* barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}
/// Makes initialised barriers visible to the cluster and to the TMA; a barrier of the threads must follow.
__device__ __forceinline__ void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

/// Arrives, and lets the phase end only after `bytes` more bytes have been copied.
__device__ __forceinline__ void arrive_and_expect_bytes(Barrier* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void arrive(Barrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
/// Arrives at the barrier that lies at the same place in block `rank` of the cluster. Release is at the scope of this block,
/// as for `arrive`: enough to hand back what only wgmma has read; at cluster scope it costs a fence of all memory.
__device__ __forceinline__ void arrive_at(Barrier* barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(
          shared_address(barrier)),
      "r"(rank)
      : "memory");
}
/// Starts copying a float to shared memory; the second counts at a barrier when what this thread started before has arrived.
__device__ __forceinline__ void start_float(float* target, const float* source) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(target)), "l"(source) : "memory");
}
__device__ __forceinline__ void arrive_when_copied(Barrier* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}
/// Waits until the phase of that parity has ended (a fresh barrier is in phase 0; "phase -1", parity 1, has ended).
__device__ __forceinline__ void wait(Barrier* barrier, uint32_t parity) {
  uint32_t done;
  do {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  } while (done == 0);
}

// ---------------------------------------------------------------------------
// Tensor memory access
// ---------------------------------------------------------------------------

__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
/// Starts copying the box at (inner, outer) into shared memory; the barrier is told of its bytes.
__device__ __forceinline__ void start_box(void* target, const CUtensorMap* map, int inner, int outer, Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(target)),
      "l"(map), "r"(shared_address(barrier)), "r"(inner), "r"(outer)
      : "memory");
}
/// The same into every block of the cluster whose bit is set in `blocks`, each block's own barrier being told.
__device__ __forceinline__ void start_box_multicast(uint16_t blocks, void* target, const CUtensorMap* map, int inner, int outer, Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(
          shared_address(target)),
      "l"(map), "r"(shared_address(barrier)), "r"(inner), "r"(outer), "h"(blocks)
      : "memory");
}
/// Both with the number of the matrix: maps of describe_matrices.
__device__ __forceinline__ void start_box(void* target, const CUtensorMap* map, int inner, int outer, int matrix, Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(target)),
      "l"(map), "r"(shared_address(barrier)), "r"(inner), "r"(outer), "r"(matrix)
      : "memory");
}
__device__ __forceinline__ void start_box_multicast(uint16_t blocks, void* target, const CUtensorMap* map, int inner, int outer, int matrix, Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(
          shared_address(target)),
      "l"(map), "r"(shared_address(barrier)), "r"(inner), "r"(outer), "r"(matrix), "h"(blocks)
      : "memory");
}
/// Asks the second-level cache for the box at (inner, outer), which some start_box will want.
__device__ __forceinline__ void prefetch_box(const CUtensorMap* map, int inner, int outer) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" ::"l"(map), "r"(inner), "r"(outer) : "memory");
}
__device__ __forceinline__ void prefetch_box(const CUtensorMap* map, int inner, int outer, int matrix) {
  asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global [%0, {%1, %2, %3}];" ::"l"(map), "r"(inner), "r"(outer), "r"(matrix) : "memory");
}
/// Starts copying a box from shared memory to (inner, outer).
__device__ __forceinline__ void start_store(const CUtensorMap* map, int inner, int outer, const void* source) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map), "r"(shared_address(source)), "r"(inner),
               "r"(outer)
               : "memory");
}
__device__ __forceinline__ void start_store(const CUtensorMap* map, int inner, int outer, int matrix, const void* source) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map), "r"(shared_address(source)), "r"(inner),
               "r"(outer), "r"(matrix)
               : "memory");
}
/// Closes a group of this thread's stores.
__device__ __forceinline__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Waits until at most `open` of this thread's latest groups still have to read shared memory.
template <int open>
__device__ __forceinline__ void wait_for_reads() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(open) : "memory");
}
/// What this thread wrote to shared memory before is seen by the TMA and by wgmma after.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Stores four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_matrices(void* address, Pair m0, Pair m1, Pair m2, Pair m3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(address)), "r"(m0), "r"(m1), "r"(m2), "r"(m3)
               : "memory");
}

// ---------------------------------------------------------------------------
// Products of a warpgroup
// ---------------------------------------------------------------------------

/// Describes an operand in shared memory: 128-byte rows, swizzled in groups of eight (1024 bytes, at a multiple of 1024).
/// Rows along the outer axis (k contiguous): groups of eight rows lie `stride` bytes apart, `leading` is unused.
/// Rows along k (outer contiguous): groups of eight k lie `stride` bytes apart, blocks of 64 outer elements `leading`.
__device__ __forceinline__ uint64_t operand(uint32_t address, uint32_t leading, uint32_t stride) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | static_cast<uint64_t>(leading >> 4) << 16 | static_cast<uint64_t>(stride >> 4) << 32 |
         1ull << 62;
}

/// Before the first product, and after registers of sums were touched.
__device__ __forceinline__ void fence_before_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
/// Closes a group of products.
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Waits until at most `open` groups of products are under way.
template <int open>
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(open) : "memory");
}
/// Keeps the compiler from moving uses of the sums across this point.
template <int count>
__device__ __forceinline__ void hold(float (&sums)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

/// sums = a * b (+ sums if `add`): a is 64 x 16, b 16 x N; thread t holds rows t / 32 * 16 + t % 32 / 4 (+ 8 for odd pairs
/// of registers) and columns 8 * (i / 4) + t % 4 * 2 + i % 2 of register i.  kOuterA: a's rows in shared memory run along k.
template <typename T, int N, bool kOuterA, bool kOuterB>
struct Product;

// the instruction's registers, sixteen to a line
#define OPFORGE_R0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define OPFORGE_R1 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define OPFORGE_R2 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define OPFORGE_R3 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define OPFORGE_R4 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define OPFORGE_R5 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define OPFORGE_R6 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define OPFORGE_R7 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define OPFORGE_SUMS4(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define OPFORGE_SUMS16(i) OPFORGE_SUMS4(i), OPFORGE_SUMS4(i + 4), OPFORGE_SUMS4(i + 8), OPFORGE_SUMS4(i + 12)
#define OPFORGE_PRODUCT(T, NAME, N, REGISTERS, TAIL, ...)                                                                              \
  template <bool kOuterA, bool kOuterB>                                                                                                \
  struct Product<T, N, kOuterA, kOuterB> {                                                                                             \
    __device__ static __forceinline__ void run(float (&sums)[N / 2], uint64_t a, uint64_t b, int add) {                                \
      asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " TAIL(2) ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME \
                   " {" REGISTERS "}, " TAIL(0) ", " TAIL(1) ", add, 1, 1, " TAIL(3) ", " TAIL(4) ";\n}"                               \
                   : __VA_ARGS__                                                                                                       \
                   : "l"(a), "l"(b), "r"(add), "n"(kOuterA ? 1 : 0), "n"(kOuterB ? 1 : 0));                                            \
    }                                                                                                                                  \
  };
// the operands after N / 2 sums: addresses, whether to add, and how the operands lie
#define OPFORGE_PICK_0(a, b, c, d, e) a
#define OPFORGE_PICK_1(a, b, c, d, e) b
#define OPFORGE_PICK_2(a, b, c, d, e) c
#define OPFORGE_PICK_3(a, b, c, d, e) d
#define OPFORGE_PICK_4(a, b, c, d, e) e
#define OPFORGE_TAIL64(i) OPFORGE_PICK_##i("%32", "%33", "%34", "%35", "%36")
#define OPFORGE_TAIL80(i) OPFORGE_PICK_##i("%40", "%41", "%42", "%43", "%44")
#define OPFORGE_TAIL96(i) OPFORGE_PICK_##i("%48", "%49", "%50", "%51", "%52")
#define OPFORGE_TAIL104(i) OPFORGE_PICK_##i("%52", "%53", "%54", "%55", "%56")
#define OPFORGE_TAIL128(i) OPFORGE_PICK_##i("%64", "%65", "%66", "%67", "%68")
#define OPFORGE_TAIL160(i) OPFORGE_PICK_##i("%80", "%81", "%82", "%83", "%84")
#define OPFORGE_TAIL192(i) OPFORGE_PICK_##i("%96", "%97", "%98", "%99", "%100")
#define OPFORGE_TAIL208(i) OPFORGE_PICK_##i("%104", "%105", "%106", "%107", "%108")
#define OPFORGE_TAIL224(i) OPFORGE_PICK_##i("%112", "%113", "%114", "%115", "%116")
#define OPFORGE_TAIL256(i) OPFORGE_PICK_##i("%128", "%129", "%130", "%131", "%132")
#define OPFORGE_REGISTERS64 OPFORGE_R0 ", " OPFORGE_R1
#define OPFORGE_REGISTERS80 OPFORGE_REGISTERS64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define OPFORGE_REGISTERS96 OPFORGE_REGISTERS64 ", " OPFORGE_R2
#define OPFORGE_REGISTERS104 OPFORGE_REGISTERS96 ", %48, %49, %50, %51"
#define OPFORGE_REGISTERS128 OPFORGE_REGISTERS96 ", " OPFORGE_R3
#define OPFORGE_REGISTERS160 OPFORGE_REGISTERS128 ", " OPFORGE_R4
#define OPFORGE_REGISTERS192 OPFORGE_REGISTERS160 ", " OPFORGE_R5
#define OPFORGE_REGISTERS208 OPFORGE_REGISTERS192 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define OPFORGE_REGISTERS224 OPFORGE_REGISTERS192 ", " OPFORGE_R6
#define OPFORGE_REGISTERS256 OPFORGE_REGISTERS192 ", " OPFORGE_R6 ", " OPFORGE_R7
#define OPFORGE_SUMS64 OPFORGE_SUMS16(0), OPFORGE_SUMS16(16)
#define OPFORGE_SUMS80 OPFORGE_SUMS64, OPFORGE_SUMS4(32), OPFORGE_SUMS4(36)
#define OPFORGE_SUMS96 OPFORGE_SUMS64, OPFORGE_SUMS16(32)
#define OPFORGE_SUMS104 OPFORGE_SUMS96, OPFORGE_SUMS4(48)
#define OPFORGE_SUMS128 OPFORGE_SUMS96, OPFORGE_SUMS16(48)
#define OPFORGE_SUMS160 OPFORGE_SUMS128, OPFORGE_SUMS16(64)
#define OPFORGE_SUMS192 OPFORGE_SUMS160, OPFORGE_SUMS16(80)
#define OPFORGE_SUMS208 OPFORGE_SUMS192, OPFORGE_SUMS4(96), OPFORGE_SUMS4(100)
#define OPFORGE_SUMS224 OPFORGE_SUMS192, OPFORGE_SUMS16(96)
#define OPFORGE_SUMS256 OPFORGE_SUMS192, OPFORGE_SUMS16(96), OPFORGE_SUMS16(112)
#define OPFORGE_PRODUCTS(N)                                                                       \
  OPFORGE_PRODUCT(half_t, "f16", N, OPFORGE_REGISTERS##N, OPFORGE_TAIL##N, OPFORGE_SUMS##N)       \
  OPFORGE_PRODUCT(bfloat16_t, "bf16", N, OPFORGE_REGISTERS##N, OPFORGE_TAIL##N, OPFORGE_SUMS##N)
OPFORGE_PRODUCTS(64)
OPFORGE_PRODUCTS(128)
OPFORGE_PRODUCTS(160)
OPFORGE_PRODUCTS(192)
OPFORGE_PRODUCTS(224)
OPFORGE_PRODUCTS(256)

// FP8: 32 terms an instruction, both operands with their terms side by side; the format of each is in the name
#define OPFORGE_PRODUCT8(T, NAMES, N, REGISTERS, TAIL, ...)                                                                              \
  template <>                                                                                                                            \
  struct Product<T, N, false, false> {                                                                                                   \
    __device__ static __forceinline__ void run(float (&sums)[N / 2], uint64_t a, uint64_t b, int add) {                                  \
      asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " TAIL(2) ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k32.f32." NAMES         \
                   " {" REGISTERS "}, " TAIL(0) ", " TAIL(1) ", add, 1, 1;\n}"                                                           \
                   : __VA_ARGS__                                                                                                         \
                   : "l"(a), "l"(b), "r"(add));                                                                                          \
    }                                                                                                                                    \
  };
#define OPFORGE_PRODUCTS8(N)                                                                              \
  OPFORGE_PRODUCT8(float8_e4m3_t, "e4m3.e4m3", N, OPFORGE_REGISTERS##N, OPFORGE_TAIL##N, OPFORGE_SUMS##N)        \
  OPFORGE_PRODUCT8(float8_e5m2_t, "e5m2.e5m2", N, OPFORGE_REGISTERS##N, OPFORGE_TAIL##N, OPFORGE_SUMS##N)
OPFORGE_PRODUCTS8(64)
OPFORGE_PRODUCTS8(80)
OPFORGE_PRODUCTS8(96)
OPFORGE_PRODUCTS8(104)
OPFORGE_PRODUCTS8(128)
OPFORGE_PRODUCTS8(160)
OPFORGE_PRODUCTS8(192)
OPFORGE_PRODUCTS8(208)
OPFORGE_PRODUCTS8(256)

}  // namespace hopper
}  // namespace opforge

#endif  // OPFORGE_HOPPER_H_
