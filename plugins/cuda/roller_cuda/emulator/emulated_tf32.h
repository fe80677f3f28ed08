// The part of the emulator for tf32; included by emulator.h.
// tf32: the upper 19 bits of a float. mma.sync wants the others to be zero, wgmma does not look at them, copies of boxes round to even.
constexpr uint32_t BELOW_TF32 = (1 << 13) - 1;

inline uint32_t bits_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
}

inline float float_of(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}

inline bool finite(uint32_t bits) { return (bits >> 23 & 0xff) != 0xff; }

inline uint32_t round_away(float value) {
    const uint32_t bits = bits_of(value);
    return value != value ? 0x7fffe000 : finite(bits) ? (bits + (BELOW_TF32 + 1) / 2) & ~BELOW_TF32 : bits;
}

inline void round_even(void *to, const void *from) {
    uint32_t bits;
    std::memcpy(&bits, from, sizeof(bits));
    if (finite(bits)) bits = (bits + BELOW_TF32 / 2 + (bits >> 13 & 1)) & ~BELOW_TF32;
    std::memcpy(to, &bits, sizeof(bits));
}

struct Truncated {
    uint32_t bits;
    operator float() const { return float_of(bits & ~BELOW_TF32); }
};

inline float tf32_of(unsigned bits) {
    if (bits & BELOW_TF32) undefined = true;
    return float_of(bits);
}

void mma_m16n8k8_tf32(float *d0, float *d1, float *d2, float *d3, const unsigned *a, const unsigned *b);
