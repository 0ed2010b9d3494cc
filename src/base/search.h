// Searching integers for the last one that a condition still holds for.
#pragma once
#include <cstdint>

namespace atom {

// The largest of 1 .. most that fits, if all below it do; 0 if none does. fits(n) is asked O(log most) times.
template <class Fits>
int64_t largest_that_fits(int64_t most, Fits fits) {
  int64_t good = 0, bad = most + 1;
  while (bad - good > 1) {
    const int64_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good;
}

}  // namespace atom
