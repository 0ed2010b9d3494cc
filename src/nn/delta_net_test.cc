// Where the parts of packed input projections lie, whole and cut over ranks.
#include "nn/delta_net.h"

#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "comm/communicator.h"

namespace atom::nn {
namespace {

using Packing = DeltaNetConfig::Packing;
using Labels = std::vector<std::string>;

// Two key heads, four value heads, heads of two lanes.
DeltaNetConfig small(Packing packing) {
  return {.packing = packing, .k_heads = 2, .v_heads = 4, .k_dim = 2, .v_dim = 2, .kernel = 4, .eps = 1e-6f};
}

// What every stored row is.
std::map<std::string, Labels> stored(Packing packing) {
  if (packing == Packing::grouped) {
    return {{"in_proj_qkvz.weight", {"q0.0", "q0.1", "k0.0", "k0.1", "v0.0", "v0.1", "v1.0", "v1.1",
                                     "z0.0", "z0.1", "z1.0", "z1.1", "q1.0", "q1.1", "k1.0", "k1.1",
                                     "v2.0", "v2.1", "v3.0", "v3.1", "z2.0", "z2.1", "z3.0", "z3.1"}},
            {"in_proj_ba.weight", {"b0", "b1", "a0", "a1", "b2", "b3", "a2", "a3"}}};
  }
  return {{"in_proj_qkv.weight",
           {"q0.0", "q0.1", "q1.0", "q1.1", "k0.0", "k0.1", "k1.0", "k1.1", "v0.0", "v0.1", "v1.0", "v1.1",
            "v2.0", "v2.1", "v3.0", "v3.1"}},
          {"in_proj_z.weight", {"z0.0", "z0.1", "z1.0", "z1.1", "z2.0", "z2.1", "z3.0", "z3.1"}},
          {"in_proj_b.weight", {"b0", "b1", "b2", "b3"}},
          {"in_proj_a.weight", {"a0", "a1", "a2", "a3"}}};
}

// The rows of the fused matrix on a rank, as labels.
Labels rows_of_rank(Packing packing, int rank, int ranks) {
  const auto comms = in_process_communicators(ranks);
  ModelTables tables;
  tables.mesh.attn = comms[rank].get();
  DeltaNet net(Scope(tables), 8, small(packing));
  const auto names = stored(packing);
  Labels rows;
  for (const Piece& piece : tables.params.front().pieces) {
    const Source& source = piece.any_of.front();
    const Range local = Scope(tables).local(piece.rows, piece.shard, source.name);
    for (int64_t r = 0; r < local.count; ++r) {
      rows.push_back(names.at(source.name).at(source.begin + (local.begin + r) * source.step));
    }
    const int64_t all = source.stored_rows > 0 ? source.stored_rows : piece.rows;
    EXPECT_EQ(all, static_cast<int64_t>(names.at(source.name).size())) << source.name;
  }
  return rows;
}

TEST(DeltaNet, PutsPackedRowsInOneOrder) {
  const Labels want = {"q0.0", "q0.1", "q1.0", "q1.1", "k0.0", "k0.1", "k1.0", "k1.1", "v0.0", "v0.1", "v1.0",
                       "v1.1", "v2.0", "v2.1", "v3.0", "v3.1", "z0.0", "z0.1", "z1.0", "z1.1", "z2.0", "z2.1",
                       "z3.0", "z3.1", "b0",   "b1",   "b2",   "b3",   "a0",   "a1",   "a2",   "a3"};
  EXPECT_EQ(rows_of_rank(Packing::grouped, 0, 1), want);
  EXPECT_EQ(rows_of_rank(Packing::separate, 0, 1), want);
}

TEST(DeltaNet, CutsEveryPackedPartByHeads) {
  const Labels second = {"q1.0", "q1.1", "k1.0", "k1.1", "v2.0", "v2.1", "v3.0", "v3.1",
                         "z2.0", "z2.1", "z3.0", "z3.1", "b2",   "b3",   "a2",   "a3"};
  EXPECT_EQ(rows_of_rank(Packing::grouped, 1, 2), second);
  EXPECT_EQ(rows_of_rank(Packing::separate, 1, 2), second);
}

TEST(DeltaNet, RanksMayShareAKeyHead) {
  const Labels third = {"q1.0", "q1.1", "k1.0", "k1.1", "v2.0", "v2.1", "z2.0", "z2.1", "b2", "a2"};
  EXPECT_EQ(rows_of_rank(Packing::grouped, 2, 4), third);
  EXPECT_EQ(rows_of_rank(Packing::separate, 2, 4), third);
}

TEST(DeltaNet, RefusesMoreRanksThanValueHeads) { EXPECT_THROW(rows_of_rank(Packing::separate, 0, 8), Error); }

}  // namespace
}  // namespace atom::nn
