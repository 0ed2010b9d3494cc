#include "engine/device_option.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tensor/gpu.h"

namespace atom {
namespace {

std::string refusal_of(const std::string& text) {
  try {
    parse_device(text);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::invalid) << text;
    return e.message();
  }
  return "";
}

TEST(DeviceOption, AutoTakesAGpuOnlyIfThereIsOne) {
  EXPECT_EQ(parse_device("cpu"), Device{});
  const Device device = parse_device("auto");
  EXPECT_EQ(device.kind == Device::cpu, gpu::device_count() == 0);
}

TEST(DeviceOption, RefusesWhatIsNotADevice) {
  for (const char* text :
       {"", "gpu", "cuda:x", "cuda:", "cuda:-1", "cuda:1x", "cuda:128", "hip:99999999999", "cpu:0"}) {
    EXPECT_NE(refusal_of(text).find(std::string("--device ") + text), std::string::npos) << text;
  }
}

TEST(DeviceOption, NamesTheRemedyWhereThereIsNoGpu) {
  if (gpu::device_count() > 0) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_NE(refusal_of("cuda").find("use cpu"), std::string::npos);
  EXPECT_NE(refusal_of("hip:1").find("use cpu"), std::string::npos);
}

TEST(DeviceOption, PrintsAsItIsWritten) {
  EXPECT_EQ(to_string(Device{}), "cpu");
  EXPECT_EQ(to_string(Device{Device::cuda, 1}), "cuda:1");
}

}  // namespace
}  // namespace atom
