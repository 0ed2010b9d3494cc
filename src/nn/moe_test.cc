// What a block of routed experts declares: which tensors, which parts, on which rank.
#include "nn/moe.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"

namespace atom::nn {
namespace {

constexpr int64_t kHidden = 16;

MoeConfig config(int64_t experts, int64_t inter) {
  MoeConfig c;
  c.router = {.experts = experts, .top_k = 2};
  c.experts.inter = inter;
  return c;
}

// The tables of rank `group` of `groups` on the expert axis, `inner` of `share` among the ranks of a group.
struct Declared {
  Declared(const MoeConfig& c, int group = 0, int groups = 1, int inner = 0, int share = 1)
      : expert(in_process_communicators(groups)), expert_mlp(in_process_communicators(share)) {
    tables.mesh.expert = expert[group].get();
    tables.mesh.expert_mlp = expert_mlp[inner].get();
    Moe moe(Scope(tables, "mlp"), kHidden, c);
  }
  const ParamEntry* find(const std::string& path) const {
    for (const ParamEntry& p : tables.params) {
      if (p.path == path) return &p;
    }
    return nullptr;
  }
  std::vector<std::unique_ptr<Communicator>> expert, expert_mlp;
  ModelTables tables;
};

TEST(Moe, ARankDeclaresItsOwnExpertsOnly) {
  std::set<std::string> seen;
  for (int group = 0; group < 2; ++group) {
    const Declared d(config(5, 8), group, 2);
    for (int e = 0; e < 5; ++e) {
      const std::string name = "mlp.experts." + std::to_string(e) + ".down.weight";
      if (d.find(name) == nullptr) continue;
      EXPECT_TRUE(seen.insert(name).second) << name << " on both groups";
    }
    EXPECT_NE(d.find("mlp.gate.weight"), nullptr);  // every rank routes
  }
  EXPECT_EQ(seen.size(), 5u);
}

TEST(Moe, EitherLayoutFeedsAnExpert) {
  const Declared d(config(4, 8));
  const ParamEntry& gate_up = *d.find("mlp.experts.3.gate|up.weight");
  ASSERT_EQ(gate_up.pieces.size(), 2u);
  const Source &each = gate_up.pieces[1].any_of[0], &stacked = gate_up.pieces[1].any_of[1];
  EXPECT_EQ(each.name, "mlp.experts.3.up_proj.weight");
  EXPECT_EQ(stacked.name, "mlp.experts.gate_up_proj");
  EXPECT_EQ(stacked.index, 3);
  EXPECT_EQ(stacked.slices, 4);
  EXPECT_EQ(stacked.begin, 8);
  EXPECT_EQ(stacked.stored_rows, 16);
  EXPECT_FALSE(stacked.transposed);
}

TEST(Moe, InterleavedStacksAreReadInSteps) {
  MoeConfig c = config(4, 8);
  c.experts.fused = FusedLayout::in_out_interleaved;
  c.experts.bias = true;
  const Declared d(c);
  const Source& up = d.find("mlp.experts.2.gate|up.weight")->pieces[1].any_of[1];
  EXPECT_TRUE(up.transposed);
  EXPECT_EQ(up.begin, 1);
  EXPECT_EQ(up.step, 2);
  const Source& bias = d.find("mlp.experts.2.gate|up.bias")->pieces[1].any_of[0];
  EXPECT_EQ(bias.name, "mlp.experts.gate_up_proj_bias");
  EXPECT_FALSE(bias.transposed);
  EXPECT_EQ(bias.step, 2);
}

TEST(Moe, RefusesMoreRanksThanThereIsToShare) {
  EXPECT_THROW(Declared(config(2, 8), 0, 3), Error);
  EXPECT_THROW(Declared(config(8, 2), 0, 1, 0, 3), Error);
  EXPECT_NO_THROW(Declared(config(8, 5), 1, 3, 1, 3));
}

TEST(Moe, RefusesARouterThatCannotChoose) {
  MoeConfig c = config(8, 8);
  c.router.top_k = 9;
  EXPECT_THROW(Declared{c}, Error);
  c.router.top_k = 3;
  c.router.groups = 4;
  EXPECT_THROW(Declared{c}, Error) << "one group of two experts has no third";
  c.router.top_groups = 2;
  EXPECT_NO_THROW(Declared{c});
  c.router.groups = 3;
  EXPECT_THROW(Declared{c}, Error);
}

}  // namespace
}  // namespace atom::nn
