// A lane's part of an operand of the matrix units, from a panel in local memory: neighbours there, or values that lie a step apart.
template <int bytes, class T> __device__ __forceinline__ void roller_row(unsigned int *held, const T *panel) {
    __builtin_memcpy(held, __builtin_assume_aligned(panel, bytes < 16 ? bytes : 16), bytes);
}
template <int count, class T> __device__ __forceinline__ void roller_column(unsigned int *held, const T *panel, int step) {
    T values[count];
#pragma unroll
    for (int n = 0; n < count; n++) values[n] = panel[n * step];
    __builtin_memcpy(held, values, sizeof(values));
}
