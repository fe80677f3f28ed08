// Whole numbers modulo their width: of a sum, a difference or a product of signed ones C takes it for impossible that it overflows;
// of vectors the compiler does not.
#define ROLLER_WRAPPED(name, op) \
    template <typename T> __device__ __forceinline__ T roller_wrapped_##name(T a, T b) { return a op b; } \
    __device__ __forceinline__ int roller_wrapped_##name(int a, int b) { return int((unsigned int)a op (unsigned int)b); } \
    __device__ __forceinline__ long long roller_wrapped_##name(long long a, long long b) { \
        return (long long)((unsigned long long)a op (unsigned long long)b); \
    }
ROLLER_WRAPPED(add, +)
ROLLER_WRAPPED(sub, -)
ROLLER_WRAPPED(mul, *)
