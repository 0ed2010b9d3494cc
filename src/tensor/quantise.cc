#include "tensor/quantise.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "base/error.h"
#include "tensor/small_floats.h"

namespace atom {
namespace {

float largest(const float* x, int64_t n, float least) {
  for (int64_t i = 0; i < n; ++i) least = std::max(least, std::abs(x[i]));
  return least;
}

using Group = std::array<uint8_t, kMxfp4Group>;

// The group's codes if it is divided by 2^exponent, and the squared error of that.
double round_group(const float* x, int exponent, Group& codes) {
  const float scale = std::ldexp(1.0f, exponent), inverse = std::ldexp(1.0f, -exponent);
  double error = 0;
  for (int64_t i = 0; i < kMxfp4Group; ++i) {
    codes[i] = f32_to_f4e2m1(x[i] * inverse);
    const double d = static_cast<double>(x[i]) - static_cast<double>(f4e2m1_to_f32(codes[i]) * scale);
    error += d * d;
  }
  return error;
}

}  // namespace

void quantise_f8e4m3(const float* x, int64_t rows, int64_t cols, int64_t stride, int64_t block_cols,
                     uint8_t* elements, float* scales) {
  for (int64_t c = 0; c < cols; c += block_cols, ++scales) {
    const int64_t n = std::min(block_cols, cols - c);
    float amax = 0;
    for (int64_t r = 0; r < rows; ++r) amax = largest(x + r * stride + c, n, amax);
    // Of magnitudes below 2^-117 the quotient would be no normal number.
    const float scale = amax > 0 ? std::max(amax / kF8e4m3Max, 0x1p-126f) : 1;
    *scales = scale;
    for (int64_t r = 0; r < rows; ++r) {
      const float* row = x + r * stride + c;
      for (int64_t i = 0; i < n; ++i) elements[r * cols + c + i] = f32_to_f8e4m3(row[i] / scale);
    }
  }
}

void quantise_mxfp4(const float* x, int64_t rows, int64_t cols, int64_t stride, uint8_t* elements,
                    uint8_t* scales) {
  CHECK(cols % kMxfp4Group == 0, "{} columns", cols);
  constexpr int kLeast = -127, kMost = 127;  // of E8M0
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; c += kMxfp4Group) {
      const float* group = x + r * stride + c;
      const float amax = largest(group, kMxfp4Group, 0);
      // The largest is then from 4 to 8 and, at worst, cut to 6; or from 2 to 4 and not cut.
      const int low = amax > 0 ? std::clamp(std::ilogb(amax) - 2, kLeast, kMost - 1) : 0;
      Group first, second;
      const bool cut = round_group(group, low, first) <= round_group(group, low + 1, second);
      const Group& codes = cut ? first : second;
      *scales++ = static_cast<uint8_t>(low + (cut ? 0 : 1) + 127);
      for (int64_t i = 0; i < kMxfp4Group; i += 2)
        *elements++ = static_cast<uint8_t>(codes[i] | codes[i + 1] << 4);
    }
  }
}

}  // namespace atom
