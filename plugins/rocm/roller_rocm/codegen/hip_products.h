// Products that no sum takes in before they are rounded: contraction is within an expression of the text, and this is one by itself.
template <typename T> __device__ __forceinline__ T roller_product(T a, T b) {
#pragma clang fp contract(off)
    T product = a * b;
    return product;
}
