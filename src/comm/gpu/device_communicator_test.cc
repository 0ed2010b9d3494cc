// Collectives and messages of ranks with GPUs, kernel by kernel and from recorded graphs.
#include "comm/device_communicator.h"

#include <atomic>
#include <cstdlib>

#include "base/error.h"
#include "comm/gpu/device_ranks.h"

namespace atom {
namespace {

using DeviceCommunicatorTest = DeviceRanks;

float value(int rank, int64_t i, int round) {
  return 0.1f * static_cast<float>(rank + 1) + 1e-3f * static_cast<float>(i % 1000 * (rank % 3 + 1)) +
         static_cast<float>(round);
}
std::vector<float> values(int rank, int64_t n, int round) {
  std::vector<float> v(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) v[static_cast<size_t>(i)] = value(rank, i, round);
  return v;
}
std::vector<float> sums(int ranks, int64_t n, int round) {
  std::vector<float> v(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    float& sum = v[static_cast<size_t>(i)];
    for (int r = 0; r < ranks; ++r) sum = r == 0 ? value(0, i, round) : sum + value(r, i, round);
  }
  return v;
}

void expect_sums_in_rank_order(int n, const std::vector<int64_t>& counts, DeviceRank& rank) {
  const int me = rank.comm.rank();
  for (const int64_t count : counts) {
    for (int round = 0; round < 5; ++round) {
      rank.memory.release(0);
      const Tensor t = rank.upload(values(me, count, round), {count});
      rank.comm.all_reduce(rank.stream, t);
      EXPECT_TRUE(rank.download(t) == sums(n, count, round)) << count << " of " << n << ", round " << round;
    }
  }
}

TEST_F(DeviceCommunicatorTest, AllReduceSumsInRankOrderWithTheSameBitsEverywhere) {
  const std::vector<int64_t> counts = {1, 3, 4, 7, 1000, 4096, 5001, 70004, 262147, 1 << 20, (3 << 20) + 4};
  for (const int n : {1, 2, 3, 4}) {
    on_ranks(n, Traffic::all, [&](DeviceRank& rank) { expect_sums_in_rank_order(n, counts, rank); });
  }
}

TEST_F(DeviceCommunicatorTest, InboxesInHostMemoryDoTheSame) {
  for (const int n : {2, 3}) {
    on_ranks(n, Traffic::all_through_host, [&](DeviceRank& rank) {
      expect_sums_in_rank_order(n, {1, 4096, 5001, 262148}, rank);
    });
  }
}

TEST_F(DeviceCommunicatorTest, NumbersThatDoNotBeginAt16BytesAreSummed) {
  on_ranks(2, Traffic::all, [&](DeviceRank& rank) {
    const Tensor t = rank.upload(values(rank.comm.rank(), 1001, 0), {1001});
    rank.comm.all_reduce(rank.stream, make_tensor(t.as<float>() + 1, DType::f32, {1000}, t.device));
    std::vector<float> expected = sums(2, 1001, 0);
    expected[0] = value(rank.comm.rank(), 0, 0);
    EXPECT_TRUE(rank.download(t) == expected);
  });
}

TEST_F(DeviceCommunicatorTest, GraphsAndSingleCallsMayFollowEachOther) {
  for (const int n : {2, 3, 4}) {
    on_ranks(n, Traffic::all, [&](DeviceRank& rank) {
      const int me = rank.comm.rank();
      const int64_t few = 4096, many = 150000;
      const Tensor source_few = rank.memory.alloc(DType::f32, {few}),
                   t_few = rank.memory.alloc(DType::f32, {few}),
                   source_many = rank.memory.alloc(DType::f32, {many}),
                   t_many = rank.memory.alloc(DType::f32, {many}),
                   lone = rank.memory.alloc(DType::f32, {few});
      rank.queue.begin_recording();
      for (int i = 0; i < 10; ++i) {
        rank.queue.copy_on_device(t_few.data, source_few.data, t_few.bytes());
        rank.comm.all_reduce(rank.stream, t_few);
        rank.queue.copy_on_device(t_many.data, source_many.data, t_many.bytes());
        rank.comm.all_reduce(rank.stream, t_many);
      }
      const auto graph = rank.queue.end_recording();
      for (int round = 0; round < 20; ++round) {
        const std::vector<float> in_few = values(me, few, round), in_many = values(me, many, round);
        rank.write(source_few, in_few);
        rank.write(source_many, in_many);
        rank.write(lone, in_few);
        rank.queue.start(*graph);
        rank.comm.all_reduce(rank.stream, lone);
        EXPECT_TRUE(rank.download(t_few) == sums(n, few, round)) << n << " ranks, round " << round;
        EXPECT_TRUE(rank.download(t_many) == sums(n, many, round)) << n << " ranks, round " << round;
        EXPECT_TRUE(rank.download(lone) == sums(n, few, round)) << n << " ranks, round " << round;
      }
    });
  }
}

TEST_F(DeviceCommunicatorTest, AllGatherPutsColumnsSideBySide) {
  for (const int n : {2, 3, 4}) {
    on_ranks(n, Traffic::all, [&](DeviceRank& rank) {
      const int64_t me = rank.comm.rank();
      for (const auto& [rows, total] :
           {std::pair<int64_t, int64_t>(1, 5), {3, 1000}, {70, 131}, {2, 151937}}) {
        rank.memory.release(0);
        const int64_t first = total * me / n, cols = total * (me + 1) / n - first, stride = cols + 3;
        std::vector<float> in(static_cast<size_t>(rows * stride)), expected;
        for (int64_t row = 0; row < rows; ++row) {
          for (int64_t c = 0; c < cols; ++c)
            in[row * stride + c] = value(static_cast<int>(row), first + c, 0);
          for (int64_t c = 0; c < total; ++c) expected.push_back(value(static_cast<int>(row), c, 0));
        }
        const Tensor from = rank.upload(in, {rows, stride}).cols(0, cols);
        const Tensor out = rank.memory.alloc(DType::f32, {rows, total});
        rank.comm.all_gather(rank.stream, out, from);
        EXPECT_TRUE(rank.download(out) == expected) << rows << " rows of " << total << " over " << n;
      }
    });
  }
}

TEST_F(DeviceCommunicatorTest, MessagesArriveInOrderPerPair) {
  constexpr int kMessages = 12;
  for (const int n : {2, 3}) {
    on_ranks(n, Traffic::messages, [&](DeviceRank& rank) {
      const int me = rank.comm.rank();
      const Tensor out = rank.memory.alloc(DType::f32, {5000}), in = rank.memory.alloc(DType::f32, {5000});
      // Everybody sends to everybody before anybody receives; sizes differ, and the source changes at once.
      for (int i = 0; i < kMessages; ++i) {
        const int64_t count = 1 + i * 400;
        const std::vector<float> data = values(me, count, i);
        rank.write(out.rows(0, count), data);
        for (int to = 0; to < n; ++to) {
          if (to != me) rank.comm.send(rank.stream, out.rows(0, count), to);
        }
      }
      for (int i = 0; i < kMessages; ++i) {
        const int64_t count = 1 + i * 400;
        for (int from = 0; from < n; ++from) {
          if (from == me) continue;
          rank.comm.recv(rank.stream, in.rows(0, count), from);
          EXPECT_TRUE(rank.download(in.rows(0, count)) == values(from, count, i)) << i << " from " << from;
        }
      }
      // Host memory goes another way.
      int32_t word = 100 + me;
      rank.comm.send(rank.stream, make_tensor(&word, DType::i32, {1}), (me + 1) % n);
      rank.comm.recv(rank.stream, make_tensor(&word, DType::i32, {1}), (me + n - 1) % n);
      EXPECT_EQ(word, 100 + (me + n - 1) % n);
    });
  }
}

TEST_F(DeviceCommunicatorTest, ARehearsalWaitsForNobodyAndLeavesNoTrace) {
  on_ranks(2, Traffic::all, [&](DeviceRank& rank) {
    const int me = rank.comm.rank();
    const Tensor t = rank.upload(values(me, 4096, 0), {4096});
    rank.comm.rehearse(true);
    for (int i = 0; i <= me; ++i) rank.comm.all_reduce(rank.stream, t);
    rank.queue.wait();
    rank.comm.rehearse(false);
    rank.comm.all_reduce(rank.stream, t);
    EXPECT_TRUE(rank.download(t) == sums(2, 4096, 0));
  });
}

TEST_F(DeviceCommunicatorTest, ARankThatDoesNotComeIsAnError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        gpu::expect_waiting_kernels(gpu::Waiting::on_one_device);
        const std::vector<Device> where = devices(2);
        const auto comms = device_communicators(where, Traffic::all, 0.2);
        DeviceRank alone(where[0], *comms[0]);
        const Tensor t = alone.memory.alloc(DType::f32, {100});
        try {
          alone.queue.activate();
          comms[0]->all_reduce(alone.stream, t);
          alone.queue.wait();
        } catch (const Error&) {
          std::fprintf(stderr, "%s\n", comms[0]->problem().c_str());
          std::_Exit(3);
        }
        std::_Exit(0);
      },
      testing::ExitedWithCode(3), "waited 0.2 s for rank 1");
}

}  // namespace
}  // namespace atom
