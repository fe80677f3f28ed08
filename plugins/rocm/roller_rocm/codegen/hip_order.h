// HIP's own max and min drop a NaN; these keep the second operand of a comparison that fails.
template <class T> __device__ __forceinline__ T roller_max(T a, T b) { return a > b ? a : b; }
template <class T> __device__ __forceinline__ T roller_min(T a, T b) { return a < b ? a : b; }
