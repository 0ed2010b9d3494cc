// Communicator: collectives of one named axis of ranks (tensor parallel, pipeline, ...). Called by every rank
// of the axis in the same order with the same shapes. A rank that fails is fatal for the process.
#pragma once
#include <memory>
#include <vector>

#include "tensor/tensor.h"

namespace atom {

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // t += the t of all other ranks, summed in rank order, so every rank holds the same bits. f32, contiguous.
  virtual void all_reduce(Tensor t) = 0;
  // out [rows, sum of columns] = the ranks' in [rows, columns] side by side, in rank order. f32.
  virtual void all_gather(Tensor out, Tensor in) = 0;
  // Point to point, any type, contiguous; matched in order per pair of ranks.
  virtual void send(Tensor t, int to) = 0;
  virtual void recv(Tensor t, int from) = 0;
};

// The axis of one rank: every collective is the identity.
Communicator& solo_communicator();

// n ranks that are threads of this process. Element r belongs to the thread of rank r.
std::vector<std::unique_ptr<Communicator>> in_process_communicators(int n);

// Where a rank stands. Axes are named, so attention and experts may be cut differently.
struct Mesh {
  Communicator* attn = &solo_communicator();         // heads, and everything that is cut like them
  Communicator* mlp = &solo_communicator();          // dense feed-forward columns, vocabulary
  Communicator* expert = &solo_communicator();       // whole experts
  Communicator* expert_mlp = &solo_communicator();   // columns of an expert, among the ranks that share it
  Communicator* stages_comm = &solo_communicator();  // pipeline neighbours
  int stage = 0, stages = 1;
  bool first_stage() const { return stage == 0; }
  bool last_stage() const { return stage == stages - 1; }
};

}  // namespace atom
