// Plans and results as plain values.
#include "scheduler/step_plan.h"

#include <gtest/gtest.h>

namespace atom {
namespace {

StepPlan two_sequences() {
  StepPlan plan{.step = 3, .block_size = 4, .groups = 2};
  plan.token_ids = {7, 1, 2, 3};
  plan.positions = {8, 0, 1, 2};
  plan.sequences = {{.id = 5, .first_row = 0, .tokens = 1, .context = 8, .sample = true, .logit_rows = 1},
                    {.id = 6, .first_row = 1, .tokens = 3, .context = 0, .sample = false, .logit_rows = 3}};
  plan.tables = {{0, 0, 3}, {1, 3, 2}, {0, 5, 1}, {0, 6, 1}};
  plan.blocks = {0, 1, 2, 4, 5, 3, 9};
  return plan;
}

TEST(StepPlan, PrintsOneLinePerSequence) {
  EXPECT_EQ(to_string(two_sequences()),
            "step 3: 2 sequences, 4 rows\n"
            "  #5 context 8 +1 sample tables 0: 0 1 2 | 1: @1 4 5\n"
            "  #6 context 0 +3 logits 3 tables 0: 3 | 1: 9\n");
}

TEST(StepPlan, ACopyOwnsItsData) {
  StepPlan copy;
  {
    const StepPlan plan = two_sequences();
    copy = plan;
  }
  EXPECT_EQ(copy.table(0, 1).first_block, 1);
  EXPECT_EQ(copy.table(0, 1).ids[1], 5);
  EXPECT_EQ(copy.rows(), 4);
}

TEST(StepResult, KeepsTokensFlat) {
  StepResult result{.step = 3};
  result.add(5, std::vector<int32_t>{42}, true);
  result.add(6, {});
  result.add_failed(7);
  EXPECT_EQ(result.token_ids, std::vector<int32_t>{42});
  EXPECT_TRUE(result.sequences[0].finished);
  EXPECT_EQ(result.sequences[1].tokens, 0);
  EXPECT_TRUE(result.sequences[2].failed);
}

}  // namespace
}  // namespace atom
