// Whole numbers modulo their width: of a sum, a difference or a product of signed ones C takes it for impossible that it overflows.
#define ROLLER_WRAPPED(name, op, type, words) \
    __device__ __forceinline__ type roller_wrapped_##name(type a, type b) { return type((words)a op (words)b); }
#define ROLLER_WRAPPED_PAIR(name, of, type) \
    __device__ __forceinline__ type roller_wrapped_##name(type a, type b) { \
        type r; \
        r.x = roller_wrapped_##of(a.x, b.x); \
        r.y = roller_wrapped_##of(a.y, b.y); \
        return r; \
    }
#define ROLLER_WRAPPED_FOUR(name, of, type) \
    __device__ __forceinline__ type roller_wrapped_##name(type a, type b) { \
        type r; \
        r.x = roller_wrapped_##of(a.x, b.x); \
        r.y = roller_wrapped_##of(a.y, b.y); \
        r.z = roller_wrapped_##of(a.z, b.z); \
        r.w = roller_wrapped_##of(a.w, b.w); \
        return r; \
    }
#define ROLLER_WRAPPED_ALL(name, op) \
    ROLLER_WRAPPED(name##_int32, op, int, unsigned int) \
    ROLLER_WRAPPED(name##_int64, op, int64_t, unsigned long long) \
    ROLLER_WRAPPED_PAIR(name##_int32x2, name##_int32, int2) \
    ROLLER_WRAPPED_FOUR(name##_int32x4, name##_int32, int4)
ROLLER_WRAPPED_ALL(add, +)
ROLLER_WRAPPED_ALL(sub, -)
ROLLER_WRAPPED_ALL(mul, *)
