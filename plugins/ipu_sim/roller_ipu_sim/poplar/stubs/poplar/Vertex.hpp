// A stand-in, written for roller and no part of Graphcore's SDK: see README.md of this folder.
// What a codelet needs: vertices, and fields that are views of a tile's memory.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <type_traits>

// Hosts' compilers know nothing of [[poplar::constraint(...)]].
#pragma GCC diagnostic ignored "-Wattributes"

namespace poplar {

enum class VectorLayout { SPAN, ONE_PTR };

template <typename T, VectorLayout layout = VectorLayout::SPAN, unsigned alignment = alignof(T), bool interleaved = false>
struct Vector {
  using Element = T;
  static constexpr unsigned ALIGNMENT = alignment;
};

/// Elements of a tile's memory, never read or written outside.
template <typename T> class FieldView {
public:
  T &operator[](std::size_t index) const {
    if (index >= count)
      throw std::out_of_range("a codelet leaves what its field is connected to");
    return first[index];
  }
  std::size_t size() const { return count; }
  void connect(void *data, std::size_t elements) {
    first = static_cast<std::remove_const_t<T> *>(data);
    count = elements;
  }

private:
  T *first = nullptr;
  std::size_t count = 0;
};

template <typename V> class Input : public FieldView<const typename V::Element> {
public:
  using Element = typename V::Element;
  static constexpr unsigned ALIGNMENT = V::ALIGNMENT;
  static constexpr bool WRITTEN = false;
};

template <typename V> class Output : public FieldView<typename V::Element> {
public:
  using Element = typename V::Element;
  static constexpr unsigned ALIGNMENT = V::ALIGNMENT;
  static constexpr bool WRITTEN = true;
};

template <typename V> class InOut : public Output<V> {};

class Vertex {};

class MultiVertex {
public:
  static constexpr unsigned numWorkers() { return 6; }
};

} // namespace poplar
