// The communicator of an axis of one rank.
#include <cstring>

#include "comm/communicator.h"

namespace atom {
namespace {

class SoloCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void all_reduce(Stream&, Tensor) override {}
  void all_gather(Stream&, Tensor out, Tensor in) override {
    CHECK(in.rank == 2 && out.rank == 2 && out.dims == in.dims && in.dtype == DType::f32 &&
              out.dtype == DType::f32,
          "all_gather of {} into {}", in.to_string(), out.to_string());
    for (int64_t r = 0; r < in.dim(0); ++r) {
      std::memmove(out.row<float>(r), in.row<float>(r), static_cast<size_t>(in.dim(1)) * sizeof(float));
    }
  }
  void send(Stream&, Tensor, int to) override { CHECK(false, "send to rank {} of an axis of one", to); }
  void recv(Stream&, Tensor, int from) override { CHECK(false, "recv from rank {} of an axis of one", from); }
};

}  // namespace

Communicator& solo_communicator() {
  static SoloCommunicator solo;
  return solo;
}

}  // namespace atom
