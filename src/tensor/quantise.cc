#include "tensor/quantise.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "tensor/small_floats.h"

namespace atom {
namespace {

// Loops over so many numbers at once become vectors.
constexpr int64_t kLanes = 8;

float largest(const float* x, int64_t n, float least) {
  float lanes[kLanes] = {};
  const int64_t whole = n / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) lanes[l] = std::max(lanes[l], std::abs(x[i + l]));
  }
  for (int64_t i = whole; i < n; ++i) least = std::max(least, std::abs(x[i]));
  for (const float lane : lanes) least = std::max(least, lane);
  return least;
}

// What f32_to_f4e2m1 makes of a number that is not negative, as a number.
inline float nearest_e2m1(float a) {
  const auto whole = [](float v) { return (v + 0x1.8p23f) - 0x1.8p23f; };  // ties to even
  const float small = whole(a * 2) * 0.5f, middle = whole(a), large = std::min(whole(a * 0.5f) * 2, 6.0f);
  return a < 2 ? small : a < 4 ? middle : large;
}

// The squared error of rounding a group that is multiplied by `inverse`, in units of that.
float rounding_error(const float* x, float inverse) {
  float lanes[kLanes] = {};
  for (int64_t i = 0; i < kMxfp4Group; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) {
      const float a = std::abs(x[i + l] * inverse), d = a - nearest_e2m1(a);
      lanes[l] += d * d;
    }
  }
  float error = 0;
  for (const float lane : lanes) error += lane;
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
  constexpr int kLargest = 125;              // four times the power above is no float32 any more
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; c += kMxfp4Group) {
      const float* group = x + r * stride + c;
      const float amax = largest(group, kMxfp4Group, 0);
      // The largest is then from 4 to 8 and, at worst, cut to 6; or from 2 to 4 and not cut.
      const int low = amax > 0 ? std::clamp(std::ilogb(amax) - 2, kLeast, kMost - 1) : 0;
      const float inverse = std::ldexp(1.0f, -low);
      const bool cut =
          low >= kLargest || rounding_error(group, inverse) <= 4 * rounding_error(group, inverse / 2);
      const float divide = cut ? inverse : inverse / 2;
      *scales++ = static_cast<uint8_t>(low + (cut ? 0 : 1) + 127);
      for (int64_t i = 0; i < kMxfp4Group; i += 2) {
        *elements++ = static_cast<uint8_t>(f32_to_f4e2m1(group[i] * divide) |
                                           f32_to_f4e2m1(group[i + 1] * divide) << 4);
      }
    }
  }
}

}  // namespace atom
