"""Roles written out: a producer warp, two consumer warpgroups, clusters that share b, and a tile's store under the next
one's products.

moves     a is read cdiv(n, BLOCK_N) times and b cdiv(m, CLUSTER * BLOCK_M) times, mostly from the second-level cache
idea      what T.Pipelined decides in tilelang_tiled is said here: one block for each multiprocessor computes the tiles
          in turn, the producer runs on into the next tile, one product stays in flight while the one before it gives
          its stage back, and nobody waits for a store before the shared memory that it reads is wanted again. With LEAD
          one consumer is that many steps ahead, so that one multiplies while the other stores. With CLUSTER 2 the TMA
          delivers b to two blocks at once. With OVERLAP blocks start while the kernel before ends
config    zeros leave the tile to the shape: 256 columns, or fewer where that would leave multiprocessors idle
limits    sm_90 alone (wgmma); rows at multiples of 16 bytes: where only an address is none, the masked product of
          tilelang_tiled stands in
"""

import tilelang.language as T

from opforge.device.tile_choice import WEIGHTS_OF_ROLES, least_work
from opforge.device.tilelang.gemm import masked_product
from opforge.device.tilelang.tools import both, multiprocessors

ARCH = "sm_90a"
DTYPES = ("float16", "bfloat16")
SPACE = {
    "BLOCK_M": (0, 128, 256),
    "BLOCK_N": (0, 64, 128, 256),
    "STAGES": (0, 2, 3, 4, 5, 6, 7),
    "PARTS": (1, 2),
    "GROUP": (4, 8, 16),
    "CLUSTER": (1, 2),
    "LEAD": (0, 1, 2),
    "OVERLAP": (False, True),
}
SUPPORTS = {"an_operand_to_point_at": "k > 0", "rows_that_tma_walks": "k % 8 == 0 and n % 8 == 0"}
LIMITS = {
    "all_or_nothing_by_shape": "(min(BLOCK_M, BLOCK_N, STAGES) > 0) == (max(BLOCK_M, BLOCK_N, STAGES) > 0)",
    "nothing_beside_the_shape": "BLOCK_M > 0 or PARTS == 1",
    "stages_fit_shared_memory": "(BLOCK_M + BLOCK_N) * 128 * STAGES + 2 * BLOCK_M * BLOCK_N // PARTS + 1024 <= "
    "shared_bytes_per_block",
    "sums_fit_registers": "BLOCK_M * BLOCK_N <= 32768",
    "parts_of_whole_boxes": "BLOCK_N == 0 or BLOCK_N // PARTS >= 64",
    "a_stage_to_run_ahead": "STAGES == 0 or LEAD + 1 < STAGES",
}
DEFAULT = {"BLOCK_M": 0, "BLOCK_N": 0, "STAGES": 0, "PARTS": 1, "GROUP": 8, "CLUSTER": 1, "LEAD": 0, "OVERLAP": True}
UNALIGNED = {"aligned": False}
"""What becomes of a config where an address is no multiple of 16 bytes."""
BY_SHAPE = {(128, 256): 3, (128, 128): 6, (128, 64): 7}
"""Stages with tiles of this size."""

DEPTH = 64
"""Terms of a step: 128 bytes of a row, as wide as the widest swizzle."""
FOLLOW = 8
"""The named barrier at which the second consumer waits for the first to be ahead; TileLang counts its own from 3."""


def variant(axes, dtype):
    """The tile, for configs that leave it to the shape."""
    return {"tile": least_work(axes["m"], axes["n"], multiprocessors(), BY_SHAPE, weights=WEIGHTS_OF_ROLES)}


def program(
    *,
    dtype,
    target,
    precision,
    BLOCK_M,
    BLOCK_N,
    STAGES,
    PARTS,
    GROUP,
    CLUSTER,
    LEAD,
    OVERLAP,
    tile=(128, 256),
    aligned=True,
):
    if not aligned:
        return masked_product(dtype, 128, 128, 32, 256)
    if BLOCK_M == 0:
        (BLOCK_M, BLOCK_N), STAGES = tile, BY_SHAPE[tile]
    return roles(
        dtype,
        BLOCK_M,
        BLOCK_N,
        STAGES,
        PARTS,
        max(1, GROUP // CLUSTER),
        CLUSTER,
        LEAD,
        OVERLAP,
        multiprocessors() // CLUSTER,
    )


def roles(dtype, block_m, block_n, stages, parts, group, cluster, lead, overlap, programs):
    """`programs` clusters compute tiles of cluster * block_m rows in groups of `group` rows of them; each block
    computes block_m of the rows.
    """
    m, n, k = T.dynamic("m"), T.dynamic("n"), T.dynamic("k")
    half, width = block_m // 2, block_n // parts

    def place(tile, rank):
        """The first row and column of a block's share of a tile: groups of rows are visited column by column."""
        blocks_m, blocks_n = T.ceildiv(m, cluster * block_m), T.ceildiv(n, block_n)
        first = T.truncdiv(tile, group * blocks_n) * group
        within = T.truncmod(tile, group * blocks_n)
        height = T.min(blocks_m - first, group)
        return ((first + T.truncmod(within, height)) * cluster + rank) * block_m, T.truncdiv(within, height) * block_n

    @T.macro
    def give_back(free, slot):
        # one lane of each warp, to every block whose producer writes here
        if T.shuffle_elect(32):
            if cluster > 1:
                for peer in T.unroll(cluster):
                    T.mbarrier_arrive(free[slot], peer)
            else:
                T.mbarrier_arrive(free[slot])

    @T.macro
    def produce(a, b, left, right, full, free, block, rank, tiles, steps):
        slot, phase, row, col = T.alloc_var("int32"), T.alloc_var("int32"), T.alloc_var("int32"), T.alloc_var("int32")
        slot = 0
        phase = 1
        for turn in T.serial(tiles):
            row = place(turn * programs + block, rank)[0]
            col = place(turn * programs + block, rank)[1]
            for step in T.serial(steps):
                T.mbarrier_wait_parity(free[slot], phase)
                terms = step * DEPTH
                T.tma_copy(
                    a[row : row + block_m, terms : terms + DEPTH],
                    left[slot, :, :],
                    barrier=full[slot],
                    leader_scope_threads=32,
                )
                if cluster > 1:
                    T.tma_copy(
                        b[terms : terms + DEPTH, col : col + block_n],
                        right[slot, :, :],
                        barrier=full[slot],
                        leader_scope_threads=32,
                        cluster_mask=(1 << cluster) - 1,
                    )
                else:
                    T.tma_copy(
                        b[terms : terms + DEPTH, col : col + block_n],
                        right[slot, :, :],
                        barrier=full[slot],
                        leader_scope_threads=32,
                    )
                if T.shuffle_elect(32):
                    T.mbarrier_arrive(full[slot])
                slot = slot + 1
                if slot == stages:
                    slot = 0
                    phase = phase ^ 1

    @T.macro
    def consume(me, c, left, right, out, full, free, block, rank, tiles, steps):
        sums = T.alloc_fragment((half, block_n), "float32")
        slot, phase, before, row, col = (
            T.alloc_var("int32"),
            T.alloc_var("int32"),
            T.alloc_var("int32"),
            T.alloc_var("int32"),
            T.alloc_var("int32"),
        )
        slot = 0
        phase = 0
        before = 0
        if lead and me == 1 and tiles > 0:
            T.sync_threads(FOLLOW, 256)
        for turn in T.serial(tiles):
            row = place(turn * programs + block, rank)[0] + me * half
            col = place(turn * programs + block, rank)[1]
            T.clear(sums)
            for step in T.serial(steps):
                T.mbarrier_wait_parity(full[slot], phase)
                T.wgmma_gemm(
                    left[slot, me * half : (me + 1) * half, :], right[slot, :, :], sums, policy=T.GemmWarpPolicy.FullRow
                )
                # the step before is done when only this one is under way
                T.wait_wgmma(1)
                if step > 0:
                    give_back(free, before)
                before = slot
                slot = slot + 1
                if slot == stages:
                    slot = 0
                    phase = phase ^ 1
                if lead and me == 0 and both(turn == 0, step == T.min(lead, steps) - 1):
                    T.named_barrier_arrive(FOLLOW, 256)
            T.wait_wgmma(0)
            T.warpgroup_fence_operand(sums, num_regs=half * block_n // 128)
            give_back(free, before)
            for part in T.unroll(parts):
                # what `out` held before has left it
                T.tma_store_wait(0)
                T.copy(sums[:, part * width : (part + 1) * width], out)
                T.tma_copy(out, c[row : row + half, col + part * width : col + (part + 1) * width])
        T.tma_store_wait(0)

    @T.prim_func
    def matmul(a: T.Tensor((m, k), dtype), b: T.Tensor((k, n), dtype), c: T.Tensor((m, n), dtype)):
        with T.Kernel(cluster * programs, threads=384, cluster_dims=cluster) as place_in_grid:
            left = T.alloc_shared((stages, block_m, DEPTH), dtype)
            right = T.alloc_shared((stages, DEPTH, block_n), dtype)
            low = T.alloc_shared((half, width), dtype)
            high = T.alloc_shared((half, width), dtype)
            full = T.alloc_barrier([1] * stages)
            free = T.alloc_cluster_barrier([8 * cluster] * stages) if cluster > 1 else T.alloc_barrier([8] * stages)
            block, rank = place_in_grid // cluster, place_in_grid % cluster
            steps = T.ceildiv(k, DEPTH)
            tiles = T.ceildiv(T.ceildiv(m, cluster * block_m) * T.ceildiv(n, block_n) - block, programs)
            if overlap:
                T.pdl_trigger()
                T.pdl_sync()
            thread = T.get_thread_binding()
            if thread < 128:
                T.inc_max_nreg(232)
                consume(0, c, left, right, low, full, free, block, rank, tiles, steps)
            elif thread < 256:
                T.inc_max_nreg(232)
                consume(1, c, left, right, high, full, free, block, rank, tiles, steps)
            else:
                T.dec_max_nreg(40)
                if thread < 288:
                    produce(a, b, left, right, full, free, block, rank, tiles, steps)
            if cluster > 1:
                # a block that has ended can't be told that a stage is free
                T.cluster_sync()

    return matmul
