// opforge/gemm/wgmma/sink.h - where c goes: through the TMA, with the rest of a row, or with a matrix added before the store.
#ifndef OPFORGE_GEMM_WGMMA_SINK_H_
#define OPFORGE_GEMM_WGMMA_SINK_H_

#include "opforge/gemm/wgmma/scheduler.h"

namespace opforge {
namespace wgmma {

/// c through the TMA: 16-bit or 8-bit elements in rows that it can address.
template <typename T>
struct ByMap {
  CUtensorMap map;
};

/// The same, with boxes as wide as the rest of a tile that is not a number of whole ones.
template <typename T>
struct RestByMap : ByMap<T> {
  CUtensorMap rest;
};

/// The same, where a matrix of c's shape and type is added before the store: its boxes come through the pipeline.
template <typename T>
struct AddedByMap : RestByMap<T> {
  CUtensorMap added;
};
template <typename Sink>
constexpr bool kAdds = false;
template <typename T>
constexpr bool kAdds<AddedByMap<T>> = true;

}  // namespace wgmma
}  // namespace opforge

#endif  // OPFORGE_GEMM_WGMMA_SINK_H_
