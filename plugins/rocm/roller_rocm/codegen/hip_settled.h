// The same value, computed by now: compilers would put off the computing, beyond barriers, and keep what it is computed of.
template <typename T>
__device__ __forceinline__ T roller_settled(T value) {
    asm volatile("" : "+v"(value));
    return value;
}
