// Two bytes, on every version of HIP; rounded to the nearest, to even of two, and a NaN stays one.
struct roller_bfloat16 {
    unsigned short bits;
    roller_bfloat16() = default;
    __device__ __forceinline__ explicit roller_bfloat16(float value) {
        const unsigned int wide = __builtin_bit_cast(unsigned int, value);
        bits = value != value ? 0x7fff : (wide + 0x7fff + (wide >> 16 & 1)) >> 16;
    }
    __device__ __forceinline__ operator float() const { return __builtin_bit_cast(float, static_cast<unsigned int>(bits) << 16); }
};
