#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>

#include "comm/communicator.h"

namespace atom {
namespace {

// Runs fn(communicator, stream) on one thread per rank.
void on_ranks(int n, const std::function<void(Communicator&, Stream&)>& fn) {
  auto ranks = in_process_communicators(n);
  std::vector<std::thread> threads;
  for (auto& rank : ranks)
    threads.emplace_back([&fn, &rank] {
      ThreadPool pool(1);
      Stream stream(pool);
      fn(*rank, stream);
    });
  for (std::thread& thread : threads) thread.join();
}

class InProcess : public testing::TestWithParam<int> {};

TEST_P(InProcess, AllReduceSumsInRankOrderWithTheSameBitsEverywhere) {
  const int n = GetParam();
  for (const int64_t count : {1, 3, 7, 1000, 5000}) {
    auto value = [](int rank, int64_t i) {
      return 0.1f * static_cast<float>(rank + 1) + 1e-3f * static_cast<float>(i * (rank % 3 + 1));
    };
    std::vector<float> expected(count);
    for (int64_t i = 0; i < count; ++i) {
      for (int r = 0; r < n; ++r) expected[i] = r == 0 ? value(0, i) : expected[i] + value(r, i);
    }
    std::atomic<int> different{0};
    on_ranks(n, [&](Communicator& comm, Stream& stream) {
      EXPECT_EQ(comm.size(), n);
      for (int round = 0; round < 20; ++round) {
        std::vector<float> data(count);
        for (int64_t i = 0; i < count; ++i) data[i] = value(comm.rank(), i);
        comm.all_reduce(stream, make_tensor(data.data(), DType::f32, {count}));
        if (data != expected) ++different;
      }
    });
    EXPECT_EQ(different.load(), 0) << count << " elements";
  }
}

TEST_P(InProcess, AllGatherPutsColumnsSideBySide) {
  const int n = GetParam();
  constexpr int64_t kRows = 3;
  std::atomic<int> wrong{0};
  on_ranks(n, [&](Communicator& comm, Stream& stream) {
    int64_t total = 0;
    for (int r = 0; r < n; ++r) total += r + 1;
    const int64_t cols = comm.rank() + 1;  // ranks may differ
    for (int round = 0; round < 20; ++round) {
      std::vector<float> in(kRows * cols), out(kRows * total, -1.0f);
      for (int64_t i = 0; i < kRows * cols; ++i) in[i] = static_cast<float>(1000 * comm.rank() + i + round);
      comm.all_gather(stream, make_tensor(out.data(), DType::f32, {kRows, total}),
                      make_tensor(in.data(), DType::f32, {kRows, cols}));
      for (int64_t row = 0, at = 0; row < kRows; ++row) {
        for (int r = 0; r < n; ++r) {
          for (int64_t c = 0; c <= r; ++c, ++at) {
            if (out[at] != static_cast<float>(1000 * r + row * (r + 1) + c + round)) ++wrong;
          }
        }
      }
    }
  });
  EXPECT_EQ(wrong.load(), 0);
}

TEST_P(InProcess, MessagesArriveInOrderPerPair) {
  const int n = GetParam();
  std::atomic<int> wrong{0};
  on_ranks(n, [&](Communicator& comm, Stream& stream) {
    // Everybody sends to everybody before anybody receives.
    for (int32_t i = 0; i < 30; ++i) {
      for (int to = 0; to < n; ++to) {
        if (to == comm.rank()) continue;
        int32_t payload[2] = {i, comm.rank()};
        comm.send(stream, make_tensor(payload, DType::i32, {2}), to);
      }
    }
    for (int32_t i = 0; i < 30; ++i) {
      for (int from = 0; from < n; ++from) {
        if (from == comm.rank()) continue;
        int32_t payload[2] = {-1, -1};
        comm.recv(stream, make_tensor(payload, DType::i32, {2}), from);
        if (payload[0] != i || payload[1] != from) ++wrong;
      }
    }
  });
  EXPECT_EQ(wrong.load(), 0);
}

INSTANTIATE_TEST_SUITE_P(Ranks, InProcess, testing::Values(1, 2, 3, 4, 8));

TEST(InProcess, TensorsOfUnevenSizeFailLoudly) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(on_ranks(2,
                        [](Communicator& comm, Stream& stream) {
                          std::vector<float> data(4 + comm.rank());
                          comm.all_reduce(stream, make_tensor(data.data(), DType::f32, {4 + comm.rank()}));
                        }),
               "all_reduce of f32");
}

TEST(Solo, CollectivesAreTheIdentity) {
  Communicator& solo = solo_communicator();
  ThreadPool pool(1);
  Stream stream(pool);
  EXPECT_EQ(solo.size(), 1);
  float in[4] = {1, 2, 3, 4}, out[4] = {};
  solo.all_reduce(stream, make_tensor(in, DType::f32, {4}));
  solo.all_gather(stream, make_tensor(out, DType::f32, {2, 2}), make_tensor(in, DType::f32, {2, 2}));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(out[i], static_cast<float>(i + 1));
}

}  // namespace
}  // namespace atom
