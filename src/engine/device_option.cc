#include "engine/device_option.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "tensor/gpu.h"

namespace atom {
namespace {

// The numbers behind "cuda:".
std::vector<int> parse_indices(const std::string& text, const std::string& kind) {
  std::vector<int> indices;
  const char* end = text.data() + text.size();
  for (const char* at = text.data() + kind.size();;) {
    int index = 0;
    const auto [stopped, error] = std::from_chars(at + 1, end, index);
    if (error != std::errc{} || index < 0 || index > 127 || (stopped != end && *stopped != ',')) {
      throw invalid("--device {}: write {}:0, {}:1, ..., or {}:0,1 for two ranks", text, kind, kind, kind);
    }
    indices.push_back(index);
    if (stopped == end) return indices;
    at = stopped;
  }
}

std::vector<Device> devices_of(Device::Kind kind, const std::vector<int>& indices) {
  std::vector<Device> devices;
  for (const int index : indices) devices.push_back({kind, static_cast<int8_t>(index)});
  return devices;
}

std::vector<int> first_indices(int count) {
  std::vector<int> indices(static_cast<size_t>(count));
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

// Said before the driver is asked for anything.
void expect_ranks(const std::vector<int>& indices) {
  if (indices.size() < 2) return;
  const std::set<int> distinct(indices.begin(), indices.end());
  gpu::expect_waiting_kernels(distinct.size() < indices.size() ? gpu::Waiting::on_one_device
                                                               : gpu::Waiting::across_devices);
}

}  // namespace

std::vector<Device> parse_devices(const std::string& text, int ranks) {
  const std::vector<Device> cpu(static_cast<size_t>(ranks));
  if (text == "cpu") return cpu;
  if (text == "auto") {
    expect_ranks(first_indices(ranks));
    const int count = gpu::device_count();
    if (count >= ranks) return devices_of(gpu::backend(), first_indices(ranks));
    if (count > 0) log_warning("--device auto: {} ranks run on the CPU, not on {} GPUs", ranks, count);
    return cpu;
  }
  const std::string name = text.substr(0, text.find(':'));
  if (name != "cuda" && name != "hip")
    throw invalid("--device {}: unknown; use auto, cpu, cuda, cuda:i, cuda:i,j, ... or hip", text);
  const bool named = name.size() < text.size();
  const std::vector<int> indices = named ? parse_indices(text, name) : first_indices(ranks);
  const Device::Kind kind = name == "cuda" ? Device::cuda : Device::hip;
  if (gpu::backend() != kind) {
    throw invalid("--device {}: this build has no {} backend; use cpu{}", text, name,
                  kind == Device::cuda ? ", or build with it (make gpu)" : "");
  }
  expect_ranks(indices);
  const std::vector<Device> devices = devices_of(kind, indices);
  const int count = gpu::device_count();
  if (count == 0) throw invalid("--device {}: no GPU or no driver for it on this machine; use cpu", text);
  if (!named && count < ranks) {
    throw invalid("--device {}: {} ranks, and this machine has {} of them; use fewer ranks", text, ranks,
                  count);
  }
  if (static_cast<int>(indices.size()) != ranks) {
    throw invalid("--device {}: names {} devices for {} ranks (--tp times --pp); name one for each", text,
                  indices.size(), ranks);
  }
  if (const int last = *std::max_element(indices.begin(), indices.end()); last >= count) {
    throw invalid("--device {}: this machine has {} of them, the first is {}:0", text, count, name);
  }
  return devices;
}

std::string to_string(Device device) {
  if (device.kind == Device::cpu) return "cpu";
  return (device.kind == Device::cuda ? "cuda:" : "hip:") + std::to_string(device.index);
}

}  // namespace atom
