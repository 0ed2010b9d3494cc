// The anatomy of a checkpoint as a page for the terminal.
#include <fmt/format.h>

#include <algorithm>

#include "base/text_util.h"
#include "cli/inspection.h"

namespace atom::cli {
namespace {

constexpr int kBarWidth = 24;
constexpr size_t kStripWidth = 80;  // layers per line

// A bar of eighths of a character.
std::string bar(int64_t count, int64_t largest) {
  static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto eighths =
      static_cast<int64_t>(8.0 * kBarWidth * static_cast<double>(count) / static_cast<double>(largest));
  std::string text;
  for (int64_t i = 0; i < eighths / 8; ++i) text += "█";
  text += kEighths[eighths % 8];
  const int64_t used = eighths / 8 + (eighths % 8 > 0);
  return text + std::string(static_cast<size_t>(kBarWidth - used), ' ');
}

double percent(int64_t count, int64_t of) {
  return of > 0 ? 100.0 * static_cast<double>(count) / static_cast<double>(of) : 0;
}

void parameters(std::string& out, const Anatomy& a) {
  const ParameterCount all = a.parameters();
  std::vector<Component> components;
  for (int p = 0; p < kComponents; ++p) {
    if (a.components[p].total > 0) components.push_back(static_cast<Component>(p));
  }
  std::stable_sort(components.begin(), components.end(),
                   [&](Component x, Component y) { return a.component(x).total > a.component(y).total; });
  out += fmt::format("\n{:<20}{:>{}}  {:>10}\n", "parameters", "all", kBarWidth + 20, "per token");
  for (const Component p : components) {
    const ParameterCount& count = a.component(p);
    out += fmt::format("  {:<18}{} {:>10} {:6.2f} %  {:>10}\n", component_name(p),
                       bar(count.total, a.component(components[0]).total), format_count(count.total),
                       percent(count.total, all.total), count.active > 0 ? format_count(count.active) : "-");
  }
  out += fmt::format("  {:<18}{:{}} {:>10} {:8}  {:>10}  {:.1f} % of all\n", "together", "", kBarWidth,
                     format_count(all.total), "", format_count(all.active), percent(all.active, all.total));
}

void schedule(std::string& out, const Anatomy& a) {
  out += fmt::format(
      "\nlayers  {}{}\n", a.layers.size(),
      a.draft_layers > 0 ? fmt::format(", and {} that predict further tokens", a.draft_layers) : "");
  const Strip strip = layer_strip(a);
  for (size_t begin = 0; begin < a.layers.size(); begin += kStripWidth) {
    const size_t end = std::min(a.layers.size(), begin + kStripWidth);
    std::string ruler;
    for (size_t i = begin; i < end; i += 10) ruler += fmt::format("{:<10}", i);
    while (ruler.ends_with(' ')) ruler.pop_back();
    out += fmt::format("  {:<10}{}\n", "", ruler);
    for (const Strip::Row& row : strip.rows) {
      out += fmt::format("  {:<10}{}\n", row.title, row.letters.substr(begin, kStripWidth));
    }
  }
  for (const Strip::Row& row : strip.rows) {
    for (const auto& [letter, meaning] : row.legend) out += fmt::format("  {} {}", letter, meaning);
  }
  out += "\n";
}

void unfolded(std::string& out, const Inspection& inspection) {
  const LayerAnatomy& l = inspection.anatomy.layers[inspection.unfolded_layer];
  out += fmt::format("\nlayer {}  {} parameters, {} per token\n", inspection.unfolded_layer,
                     format_count(l.parameters.total), format_count(l.parameters.active));
  for (const TensorLine& t : inspection.unfolded) {
    const std::string shape =
        t.cols > 1 ? fmt::format("[{}, {}]", t.rows, t.cols) : fmt::format("[{}]", t.rows);
    out += fmt::format("  {:<42}{:<18}{:>8} {:>10}  {}\n", t.name, shape,
                       t.count > 1 ? fmt::format("x {}", t.count) : "",
                       format_count(t.rows * t.cols * t.count), t.stored);
  }
}

void cache(std::string& out, const CacheAnatomy& c) {
  out += fmt::format("\ncache, of every token   {} bytes of keys and values in bf16{}\n", c.kv_per_token,
                     c.can_be_fp8 ? fmt::format(", {} in fp8", c.kv_per_token / 2) : "");
  if (c.sliding_per_token > 0)
    out += fmt::format("{:24}{} of them only while the token is in a window\n", "", c.sliding_per_token);
  if (c.index_per_token > 0)
    out += fmt::format("{:24}{} bytes of index keys in e4m3 with f32 scales\n", "", c.index_per_token);
  if (c.state_per_request > 0)
    out += fmt::format("cache, of every request {} bytes of recurrent state in f32\n", c.state_per_request);
}

void stored(std::string& out, const Inspection& inspection) {
  const StoredTotals& s = inspection.stored;
  out += "\nstored  ";
  if (s.from_headers) {
    out += fmt::format("{} tensors in {} files, {}\n", *s.count, s.files, format_bytes(*s.bytes));
    for (const auto& [name, kind] : s.by_dtype)
      out += fmt::format("  {:<12}{:>8} tensors {:>12}\n", name, kind.count, format_bytes(kind.bytes));
  } else if (s.bytes) {
    out += fmt::format("no weights here; in the type that the config names they take {}\n",
                       format_bytes(*s.bytes));
  } else {
    out += "no weights here\n";
  }
  if (!inspection.quantization.is_null()) out += "quantization  " + inspection.quantization.dump() + "\n";
}

}  // namespace

std::string to_text(const Inspection& inspection) {
  const Anatomy& a = inspection.anatomy;
  std::string out =
      fmt::format("{}  {}, hidden {}, vocabulary {}\n", inspection.name, a.architecture, a.hidden, a.vocab);
  if (!a.supported) out += "atom cannot run this architecture; its shapes are known\n";
  parameters(out, a);
  schedule(out, a);
  unfolded(out, inspection);
  cache(out, a.cache);
  stored(out, inspection);
  return out;
}

}  // namespace atom::cli
