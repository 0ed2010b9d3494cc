#include "ops/argmax.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace atom::ops {
namespace {

TEST(ArgMax, TakesTheFirstLargestAndRefusesWhatIsNotFinite) {
  ThreadPool pool(1);
  Stream stream(pool);
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::vector<float> logits = {1,     3,
                               3,  //
                               -kInf, -kInf,
                               -kInf,  //
                               0,     std::nanf(""),
                               9,  //
                               kInf,  0,
                               0,  //
                               -kInf, -5,
                               -6};
  std::vector<int32_t> ids(5, 77);
  run(stream,
      ArgMax{make_tensor(ids.data(), DType::i32, {5}), make_tensor(logits.data(), DType::f32, {5, 3})});
  EXPECT_EQ(ids, (std::vector<int32_t>{1, -1, -1, -1, 1}));
}

}  // namespace
}  // namespace atom::ops
