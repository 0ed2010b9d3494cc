#include "nn/delta_net.h"

#include "nn/head_rows.h"
#include "ops/embed.h"

namespace atom::nn {
namespace {

DeltaHeads local_delta_heads(const Scope& s, const DeltaNetConfig& d) {
  return {s.local(d.k_heads, Shard::by_rows(Axis::attn), s.join("key heads")),
          local_heads(s, d.v_heads, s.path())};
}

Shard by_heads(int64_t dim) { return Shard::by_rows(Axis::attn, dim); }

// q, k and v rows of a tensor that stores them one after the other.
std::vector<Piece> qkv_pieces(const std::string& name, int64_t cols, const DeltaNetConfig& d) {
  const int64_t keys = d.k_heads * d.k_dim, values = d.v_heads * d.v_dim, all = 2 * keys + values;
  return {{{Source{.name = name, .begin = 0, .stored_rows = all}}, keys, cols, by_heads(d.k_dim)},
          {{Source{.name = name, .begin = keys, .stored_rows = all}}, keys, cols, by_heads(d.k_dim)},
          {{Source{.name = name, .begin = 2 * keys, .stored_rows = all}}, values, cols, by_heads(d.v_dim)}};
}

std::vector<Piece> separate_inputs(const Scope& s, int64_t hidden, const DeltaNetConfig& d) {
  std::vector<Piece> pieces = qkv_pieces(s.join("in_proj_qkv.weight"), hidden, d);
  pieces.push_back({{{s.join("in_proj_z.weight")}}, d.v_heads * d.v_dim, hidden, by_heads(d.v_dim)});
  pieces.push_back({{{s.join("in_proj_b.weight")}}, d.v_heads, hidden, by_heads(1)});
  pieces.push_back({{{s.join("in_proj_a.weight")}}, d.v_heads, hidden, by_heads(1)});
  return pieces;
}

std::vector<Piece> grouped_inputs(const Scope& s, int64_t hidden, const DeltaNetConfig& d,
                                  const DeltaHeads& heads) {
  const int64_t per_key = d.values_per_key(), values = per_key * d.v_dim;
  const GroupedRows qkvz{s.join("in_proj_qkvz.weight"), hidden, d.k_heads, 2 * d.k_dim + 2 * values};
  const GroupedRows ba{s.join("in_proj_ba.weight"), hidden, d.k_heads, 2 * per_key};
  // This rank's value heads within each group: all, unless ranks share the key head.
  const int64_t first = heads.v.begin - heads.k.begin * per_key, count = heads.v.count / heads.k.count;
  std::vector<Piece> pieces;
  qkvz.append(pieces, heads.k, 0, d.k_dim);
  qkvz.append(pieces, heads.k, d.k_dim, d.k_dim);
  qkvz.append(pieces, heads.k, 2 * d.k_dim + first * d.v_dim, count * d.v_dim);
  qkvz.append(pieces, heads.k, 2 * d.k_dim + values + first * d.v_dim, count * d.v_dim);
  ba.append(pieces, heads.k, first, count);
  ba.append(pieces, heads.k, per_key + first, count);
  return pieces;
}

}  // namespace

std::vector<Piece> delta_net_inputs(const Scope& s, int64_t hidden, const DeltaNetConfig& d,
                                    const DeltaHeads& heads) {
  return d.packing == DeltaNetConfig::Packing::grouped ? grouped_inputs(s, hidden, d, heads)
                                                       : separate_inputs(s, hidden, d);
}

DeltaNet::DeltaNet(Scope s, int64_t hidden, const DeltaNetConfig& d)
    : config_(d),
      heads_(local_delta_heads(s, d)),
      state_(s.state({(d.kernel - 1) * channels(), heads_.v.count * d.k_dim * d.v_dim,
                      channels() + values() + 2 * heads_.v.count})),
      in_(s.matrix("in_proj", delta_net_inputs(s, hidden, d, heads_))),
      conv_(s.vector("conv1d.weight", qkv_pieces(s.join("conv1d.weight"), d.kernel, d))),
      a_log_(s.vector("A_log", {Piece{{{s.join("A_log")}}, d.v_heads, 1, by_heads(1)}})),
      dt_bias_(s.vector("dt_bias", {Piece{{{s.join("dt_bias")}}, d.v_heads, 1, by_heads(1)}})),
      norm_(s / "norm", d.v_dim, d.eps),
      out_(s / "out_proj", Axis::attn, d.v_heads * d.v_dim, hidden, d.v_dim, /*bias=*/false) {
  s.needs<ops::DeltaRule>("a gated delta net");
}

Partial DeltaNet::operator()(Ctx& c, Tensor x) const {
  Tensor in = c.alloc(x.dim(0), in_.rows());
  ops::run(c.stream, ops::Linear{.out = in, .x = x, .w = in_, .precision = c.precision});
  if (const auto open = static_cast<int64_t>(c.batch.open_rows.size()); open > 0) {
    ops::run(c.stream, ops::GatherRows{c.state(state_).rows.rows(0, open), in, c.batch.open_rows});
  }
  const ops::GatedDelta op = recurrence(c, in);
  ops::run(c.stream, op);
  return out_(c, op.norm.x);
}

void DeltaNet::keep_rows(Ctx& c) const {
  c.arena.begin_block();
  const ops::GatedDelta op =
      recurrence(c, c.state(state_).rows.rows(0, static_cast<int64_t>(c.batch.open_rows.size())));
  ops::run(c.stream, op.conv);
  ops::run(c.stream, op.rule);
}

ops::GatedDelta DeltaNet::recurrence(Ctx& c, Tensor in) const {
  const int64_t v_heads = heads_.v.count;
  const SlotStates& state = c.state(state_);
  const Tensor qkv = c.alloc(in.dim(0), channels()), out = c.alloc(in.dim(0), values());
  return {.conv = {qkv, in, conv_, state.conv, c.batch.recurrent, static_cast<int32_t>(config_.kernel)},
          .rule = {.out = out,
                   .qkv = qkv,
                   .a = in.cols(channels() + values() + v_heads, v_heads),
                   .b = in.cols(channels() + values(), v_heads),
                   .a_log = a_log_,
                   .dt_bias = dt_bias_,
                   .state = state.recurrent,
                   .sequences = c.batch.recurrent,
                   .k_heads = static_cast<int32_t>(heads_.k.count),
                   .v_heads = static_cast<int32_t>(v_heads),
                   .k_dim = static_cast<int32_t>(config_.k_dim),
                   .v_dim = static_cast<int32_t>(config_.v_dim),
                   .precision = c.precision},
          .norm = {out, in.cols(channels(), values()), norm_.weight(), norm_.eps()}};
}

}  // namespace atom::nn
