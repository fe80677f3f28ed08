// A stand-in, written for roller and no part of Graphcore's SDK: see README.md of this folder.
// IEEE binary16 for hosts: widened without loss, narrowed to the nearest (to even of two), once from float or double.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace poplar {

class half {
public:
  half() = default;
  half(double value) : bits(narrowed(value)) {}
  half(float value) : half(double(value)) {}
  half(int value) : half(double(value)) {}
  operator float() const {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float size = exponent == 31  ? (fraction ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity())
                       : exponent == 0 ? std::ldexp(float(fraction), -24)
                                       : std::ldexp(float(1024 + fraction), exponent - 25);
    return bits >> 15 ? -size : size;
  }

private:
  std::uint16_t bits;

  static std::uint16_t narrowed(double value) {
    const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const double size = std::fabs(value);
    if (size != size)
      return sign | 0x7e00;
    if (size >= 65520) // half way from the largest number to what would follow it
      return sign | 0x7c00;
    int exponent = -14; // of the smallest normal number
    if (size >= std::ldexp(1.0, -14))
      exponent = std::ilogb(size);
    // Steps of the last place from the binade's start; a carry out of the fraction goes on into the exponent, as it should.
    const auto steps = std::uint16_t(std::nearbyint(std::ldexp(size, 10 - exponent)));
    return sign | std::uint16_t(steps + (exponent + 14) * 1024);
  }
};

} // namespace poplar
