// Communicator: collectives of one named axis of ranks (tensor parallel, pipeline, ...). Called by every rank
// of the axis in the same order with the same shapes. On the CPU a call is done when it returns; on a GPU it
// is work of the stream's queue, which a graph can record. A rank that fails is fatal for the process.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "tensor/stream.h"

namespace atom {

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // t += the t of all other ranks, summed in rank order, so every rank holds the same bits. f32, contiguous.
  virtual void all_reduce(Stream& stream, Tensor t) = 0;
  // out [rows, total] = the ranks' in side by side, in rank order: of rank r columns total * r / size up to
  // total * (r + 1) / size. f32, dense columns.
  virtual void all_gather(Stream& stream, Tensor out, Tensor in) = 0;
  // Point to point, any type, contiguous; matched in order per pair of ranks. `t` may be changed when the
  // call returns, on a GPU by later work of the stream. Ranks with GPUs can send host memory too.
  virtual void send(Stream& stream, Tensor t, int to) = 0;
  virtual void recv(Stream& stream, Tensor t, int from) = 0;

  // Ranks with GPUs. Takes the memory that a message of at most so many bytes needs on its way.
  virtual void reserve(int64_t /*bytes*/, int /*to*/) {}
  // While rehearsing, collectives start their kernels, and these act as if there were no other rank.
  virtual void rehearse(bool /*on*/) {}
  // Why a collective gave up; empty: none did.
  virtual std::string problem() const { return ""; }
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
