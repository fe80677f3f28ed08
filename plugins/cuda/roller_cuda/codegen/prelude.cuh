// CUDA's own max and min drop a NaN; these keep the second operand of a comparison that fails, which the text counts on.
template <class T> __device__ __forceinline__ T roller_max(T a, T b) { return a > b ? a : b; }
template <class T> __device__ __forceinline__ T roller_min(T a, T b) { return a < b ? a : b; }
#define max roller_max
#define min roller_min
#define CUDART_INF_F __int_as_float(0x7f800000)
#define inff CUDART_INF_F  // how an infinite bfloat16 constant is printed
#define CUDART_NAN_F __int_as_float(0x7fffffff)
#define CUDART_INF __longlong_as_double(0x7ff0000000000000)
#define CUDART_NAN __longlong_as_double(0xfff8000000000000)
using uchar = unsigned char;
using uint = unsigned int;
using ushort = unsigned short;
using int64_t = long;  // NVRTC has none of its own; as the systems on which kernels are compiled define it
