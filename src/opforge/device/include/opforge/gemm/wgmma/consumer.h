// opforge/gemm/wgmma/consumer.h - the multiplying warpgroups: products kept in registers, or promoted every step by one of four schedules.
#ifndef OPFORGE_GEMM_WGMMA_CONSUMER_H_
#define OPFORGE_GEMM_WGMMA_CONSUMER_H_

#include "opforge/gemm/wgmma/store.h"

namespace opforge {
namespace wgmma {

/// Sums that stay in the tensor cores' own registers from the first term to the last: what 16-bit operands want.
struct NoPromotion {
  static constexpr bool kEachStep = false, kReads = false;
  __device__ __forceinline__ int fetch(int, int, int, int) const { return 0; }
};

// A warpgroup multiplies its 64 rows of every tile. What `hold(row0, col0, matrix)` gave before the first product goes with the sums to
// `store(sums, held, pipeline, row0, col0, matrix)`.
//
// Promotion   NoPromotion, or a functor with kEachStep = true: then the products of every step are a sum of their own, and
//             `promote.template add<first>(totals, sums, fetched)` adds it to the totals, from their number `first` on, in ordinary float32
//             arithmetic. What it needs from memory `promote.fetch(step, row0, col0, thread)` has asked for before the products began;
//             With S::kFloats > 0 it fetches nothing: `promote.template read<boxes>(floats, group, thread)` reads the floats of the step that
//             `load_floats` has brought.  kReads says whether a kernel before this one may have written what is fetched; S::kMeanwhile what is
//             multiplied while sums are added
template <typename S, bool kAlongM, bool kAlongN, bool kUnclustered, typename Promotion, typename Hold, typename Store>
__device__ __forceinline__ void consume(Pipeline<S> pipeline, TileScheduler<S> tile_scheduler, int steps, int group, const Promotion& promote, const Hold& hold, const Store& store) {
  using T = typename S::Element;
  constexpr int kSchedule = Promotion::kEachStep ? S::kSchedule : kSerial, kParts = kSchedule == kSplitN ? 2 : 1, kPart = S::kBlockN / kParts;
  static_assert(kPart % 8 == 0 && (kParts == 1 || !kAlongN), "a half of b begins with a row of the swizzle");
  using Product = hopper::Product<T, kPart, kAlongM, kAlongN>;
  // one instruction's terms further in a box: 32 bytes where terms are neighbours, 16 rows of 128 bytes where they are not
  constexpr uint32_t kStepA = (kAlongM ? 16 * 128 : 32) >> 4, kStepB = (kAlongN ? 16 * 128 : 32) >> 4;
  const int thread = threadIdx.x % 128;
  const uint32_t tiles = shared_address(pipeline.tiles);
  const uint64_t first_a = hopper::operand(tiles + group * kBoxBytes, kBoxBytes, 1024);
  const uint64_t first_b = hopper::operand(tiles + kBoxesA * kBoxBytes, kBoxBytes, 1024);
  float sums[kPart / 2];
  float totals[Promotion::kEachStep ? S::kBlockN / 2 : 1];
  // waits for the tiles of a step in the pipeline's slot; gives what the promotion will need
  const auto await = [&](int step, int row0, int col0) {
    if constexpr (S::kFloats > 0) {
      hopper::wait(&pipeline.full[pipeline.slot], pipeline.phase);
      const auto found = promote.template read<S::kBoxesB>(pipeline.floats + pipeline.slot * S::kFloats, group, thread);
      __syncwarp();
      if (thread % 32 == 0) hopper::arrive(&pipeline.read[pipeline.slot]);
      return found;
    } else {
      const auto asked = promote.fetch(step, row0 + group * 64, col0, thread);
      hopper::wait(&pipeline.full[pipeline.slot], pipeline.phase);
      return asked;
    }
  };
  // starts the products of the tiles in the pipeline's slot, of all columns or a half of them
  const auto multiply = [&](float(&into)[kPart / 2], bool add, int part) {
    const uint64_t a = first_a + static_cast<uint64_t>(pipeline.slot * (S::kStageBytes >> 4));
    const uint64_t b = first_b + static_cast<uint64_t>(pipeline.slot * (S::kStageBytes >> 4) + part * (kPart * 128 >> 4));
    hopper::hold(into);
    hopper::fence_before_products();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      Product::run(into, a + i * kStepA, b + i * kStepB, add || i > 0);
      if (kSchedule == kPingPong && i == 2) hopper::commit_products();
    }
    hopper::commit_products();
    hopper::hold(into);
  };
  const auto start = [&](float(&into)[kPart / 2], bool add, int step, int row0, int col0) {
    const auto fetched = await(step, row0, col0);
    multiply(into, add, 0);
    return fetched;
  };
  // a warpgroup's turn to multiply begins when the last of the other's products is about to
  const auto await_turn = [&] { hopper::named_barrier(kPingPongBarrier + group, 128 * kConsumers); };
  const auto give_turn = [&] { hopper::arrive_at_named_barrier(kPingPongBarrier + kConsumers - 1 - group, 128 * kConsumers); };
  if (kSchedule == kPingPong && group > 0) give_turn();
  int row0, col0;
  // one consumer begins a few steps before the others, and so it goes on: while it stores a tile the others still multiply
  // theirs, and while they store it is at the next
  const int lead = min(S::kLead, steps);
  if (lead > 0 && group > 0) hopper::named_barrier(kLeadBarrier, 128 * kConsumers);
  bool leading = lead > 0 && group == 0;
  while (tile_scheduler.take(row0, col0)) {
    if (kUnclustered && steps == 0) {
#pragma unroll
      for (float& sum : sums) sum = 0.0f;
    }
    if constexpr (Promotion::kEachStep) {
#pragma unroll
      for (float& total : totals) total = 0.0f;
    }
    const auto loaded = hold(row0 + group * 64, col0, tile_scheduler.matrix);
    const auto follow_after = [&](int step) {
      if (leading && step + 1 == lead) {
        hopper::arrive_at_named_barrier(kLeadBarrier, 128 * kConsumers);
        leading = false;
      }
    };
    if constexpr (kSchedule == kSplitN) {
      float others[kPart / 2];
      // a step without terms, in the plain kernel, leaves the totals 0
      if (!kUnclustered || steps > 0) {
        auto fetched = await(0, row0, col0);
        multiply(sums, false, 0);
        const auto finish_first = [&] {
          multiply(others, false, 1);
          hopper::wait_for_products<1>();
          hopper::hold(sums);
          promote.template add<0>(totals, sums, fetched);
        };
        const auto finish_second = [&](int slot) {
          hopper::hold(others);
          release<kUnclustered>(&pipeline.empty[slot], tile_scheduler, thread);
          promote.template add<kPart / 2>(totals, others, fetched);
        };
#pragma unroll 1
        for (int step = 1; step < steps; ++step) {
          finish_first();
          const int slot = pipeline.slot;
          pipeline.advance();
          follow_after(step - 1);
          const auto next = await(step, row0, col0);
          multiply(sums, false, 0);
          hopper::wait_for_products<1>();
          finish_second(slot);
          fetched = next;
        }
        const auto finish_both = [&] {
          finish_first();
          hopper::wait_for_products<0>();
          finish_second(pipeline.slot);
        };
        // the same twice: with one way out of the loop ptxas 13.0 takes the products under way for those that are read, and serializes them (C7514)
        if (steps % 2 == 0) {
          finish_both();
        } else {
          finish_both();
        }
        pipeline.advance();
        follow_after(steps - 1);
      }
      store(totals, loaded, pipeline, row0 + group * 64, col0, tile_scheduler.matrix);
    } else if constexpr (kSchedule == kDoubleBuffered) {
      float others[S::kBlockN / 2];
      using Fetched = decltype(start(sums, false, 0, 0, 0));
      const auto begin = [&](float(&into)[S::kBlockN / 2], Fetched& fetched, int step) {
        fetched = start(into, false, step, row0, col0);
        const int slot = pipeline.slot;
        pipeline.advance();
        follow_after(step);
        return slot;
      };
      const auto finish = [&](float(&done)[S::kBlockN / 2], const Fetched& fetched, int slot) {
        hopper::hold(done);
        release<kUnclustered>(&pipeline.empty[slot], tile_scheduler, thread);
        promote.template add<0>(totals, done, fetched);
      };
      // a step without terms, in the plain kernel, leaves the totals 0
      if (!kUnclustered || steps > 0) {
        Fetched one, other;
        int slot = begin(sums, one, 0), other_slot, step = 1;
        for (; step + 1 < steps; step += 2) {
          other_slot = begin(others, other, step);
          hopper::wait_for_products<1>();
          finish(sums, one, slot);
          slot = begin(sums, one, step + 1);
          hopper::wait_for_products<1>();
          finish(others, other, other_slot);
        }
        if (step < steps) {
          other_slot = begin(others, other, step);
          hopper::wait_for_products<1>();
          finish(sums, one, slot);
          hopper::wait_for_products<0>();
          finish(others, other, other_slot);
        } else {
          hopper::wait_for_products<0>();
          finish(sums, one, slot);
        }
      }
      store(totals, loaded, pipeline, row0 + group * 64, col0, tile_scheduler.matrix);
    } else {
      int before = 0;
      for (int step = 0; step < steps; ++step, pipeline.advance()) {
        if (kSchedule == kPingPong) await_turn();
        const auto fetched = start(sums, !Promotion::kEachStep && step > 0, step, row0, col0);
        if constexpr (Promotion::kEachStep) {
          if (kSchedule == kPingPong) {
            hopper::wait_for_products<1>();
            give_turn();
          }
          hopper::wait_for_products<0>();
          hopper::hold(sums);
          release<kUnclustered>(&pipeline.empty[pipeline.slot], tile_scheduler, thread);
          promote.template add<0>(totals, sums, fetched);
        } else {
          // the step before is done when only this one is under way
          hopper::wait_for_products<1>();
          if (step > 0) release<kUnclustered>(&pipeline.empty[before], tile_scheduler, thread);
          before = pipeline.slot;
        }
        follow_after(step);
      }
      if constexpr (Promotion::kEachStep) {
        store(totals, loaded, pipeline, row0 + group * 64, col0, tile_scheduler.matrix);
      } else {
        hopper::wait_for_products<0>();
        hopper::hold(sums);
        release<kUnclustered>(&pipeline.empty[before], tile_scheduler, thread);
        store(sums, loaded, pipeline, row0 + group * 64, col0, tile_scheduler.matrix);
      }
    }
  }
  if (kSchedule == kPingPong && group == 0) await_turn();  // the one that was given last
}

}  // namespace wgmma
}  // namespace opforge

#endif  // OPFORGE_GEMM_WGMMA_CONSUMER_H_
