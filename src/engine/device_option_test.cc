#include "engine/device_option.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tensor/gpu.h"

namespace atom {
namespace {

std::string refusal_of(const std::string& text, int ranks = 1) {
  try {
    parse_devices(text, ranks);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::invalid) << text;
    return e.message();
  }
  return "";
}

TEST(DeviceOption, AutoTakesAGpuOnlyIfThereIsOne) {
  EXPECT_EQ(parse_devices("cpu"), std::vector<Device>(1));
  EXPECT_EQ(parse_devices("cpu", 3), std::vector<Device>(3));
  for (const int ranks : {1, 2, 100}) {
    const std::vector<Device> devices = parse_devices("auto", ranks);
    EXPECT_EQ(devices.size(), static_cast<size_t>(ranks));
    EXPECT_EQ(devices.back().kind == Device::cpu, gpu::device_count() < ranks);
  }
}

TEST(DeviceOption, RefusesWhatIsNotADevice) {
  for (const char* text : {"", "gpu", "cuda:x", "cuda:", "cuda:-1", "cuda:1x", "cuda:128", "hip:99999999999",
                           "cpu:0", "cuda:0,", "cuda:,0", "cuda:0;1", "cuda:0,-1"}) {
    EXPECT_NE(refusal_of(text).find(std::string("--device ") + text), std::string::npos) << text;
  }
}

TEST(DeviceOption, NamesTheRemedyWhereThereIsNoGpu) {
  if (gpu::device_count() > 0) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_NE(refusal_of("cuda").find("use cpu"), std::string::npos);
  EXPECT_NE(refusal_of("hip:1").find("use cpu"), std::string::npos);
}

TEST(DeviceOption, EveryRankHasADevice) {
  const int count = gpu::device_count();
  if (count == 0) GTEST_SKIP() << "this machine has no GPU";
  const Device first{gpu::backend(), 0};
  const std::string name = to_string(first).substr(0, to_string(first).find(':'));
  EXPECT_EQ(parse_devices(name + ":0,0,0", 3), std::vector<Device>(3, first));
  EXPECT_EQ(parse_devices(name, count).back().index, count - 1);
  EXPECT_NE(refusal_of(name, count + 1).find("use fewer ranks"), std::string::npos);
  EXPECT_NE(refusal_of(name + ":0", 2).find("1 devices for 2 ranks"), std::string::npos);
  EXPECT_NE(refusal_of(name + ":0,0", 1).find("2 devices for 1 ranks"), std::string::npos);
  EXPECT_NE(refusal_of(name + ":0," + std::to_string(count), 2).find("the first is"), std::string::npos);
}

TEST(DeviceOption, PrintsAsItIsWritten) {
  EXPECT_EQ(to_string(Device{}), "cpu");
  EXPECT_EQ(to_string(Device{Device::cuda, 1}), "cuda:1");
}

}  // namespace
}  // namespace atom
