#include "engine/device_option.h"

#include <charconv>

#include "base/error.h"
#include "tensor/gpu.h"

namespace atom {

Device parse_device(const std::string& text) {
  if (text == "cpu") return {};
  if (text == "auto") return gpu::device_count() > 0 ? Device{gpu::backend(), 0} : Device{};
  const size_t colon = std::min(text.find(':'), text.size());
  const std::string kind = text.substr(0, colon);
  if (kind != "cuda" && kind != "hip")
    throw invalid("--device {}: unknown; use auto, cpu, cuda:i or hip:i", text);
  int index = 0;
  if (colon < text.size()) {
    const char* end = text.data() + text.size();
    const auto [stopped, error] = std::from_chars(text.data() + colon + 1, end, index);
    if (error != std::errc{} || stopped != end || index < 0 || index > 127) {
      throw invalid("--device {}: write {}:0, {}:1, ...", text, kind, kind);
    }
  }
  const Device device{kind == "cuda" ? Device::cuda : Device::hip, static_cast<int8_t>(index)};
  if (gpu::backend() != device.kind) {
    throw invalid("--device {}: this build has no {} backend; use cpu, or build with it (make gpu)", text,
                  kind);
  }
  const int count = gpu::device_count();
  if (count == 0) throw invalid("--device {}: no GPU or no driver for it on this machine; use cpu", text);
  if (index >= count)
    throw invalid("--device {}: this machine has {} of them, the first is {}:0", text, count, kind);
  return device;
}

std::string to_string(Device device) {
  if (device.kind == Device::cpu) return "cpu";
  return (device.kind == Device::cuda ? "cuda:" : "hip:") + std::to_string(device.index);
}

}  // namespace atom
