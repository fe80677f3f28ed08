// A stand-in, written for roller and no part of Graphcore's SDK: see README.md of this folder.
// Variables mapped to tiles, tensors as views of them, compute sets of connected vertices.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../roller_registry.hpp"

namespace poplar {

struct poplar_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Type {
  const char *name;
  std::size_t bytes;
  bool operator==(const Type &other) const { return std::string(name) == other.name; }
  bool operator!=(const Type &other) const { return !(*this == other); }
};

inline const Type HALF{"half", 2}, FLOAT{"float", 4}, BOOL{"bool", 1}, SIGNED_CHAR{"signed char", 1}, UNSIGNED_CHAR{"unsigned char", 1},
    SHORT{"short", 2}, UNSIGNED_SHORT{"unsigned short", 2}, INT{"int", 4}, UNSIGNED_INT{"unsigned int", 4}, LONGLONG{"long long", 8};

class Target {
public:
  explicit Target(unsigned tiles = 0) : tiles(tiles) {}
  unsigned getNumTiles() const { return tiles; }
  std::size_t getTypeSize(const Type &type) const { return type.bytes; }

private:
  unsigned tiles;
};

namespace stub {

constexpr unsigned UNMAPPED = ~0U;

struct Variable {
  Type type;
  std::vector<std::size_t> shape;
  std::string name;
  std::vector<unsigned> tile;      // of each element
  std::vector<unsigned char> data; // filled with ones: not a number in every float
};

struct Run { // elements of a variable, one after another
  std::shared_ptr<Variable> variable;
  std::size_t first, count;
};

} // namespace stub

class Tensor {
public:
  Tensor() = default;
  Tensor(std::vector<stub::Run> runs, std::vector<std::size_t> shape) : parts(std::move(runs)), extents(std::move(shape)) {}

  const std::vector<std::size_t> &shape() const { return extents; }
  const std::vector<stub::Run> &runs() const { return parts; }
  const Type &elementType() const { return parts.at(0).variable->type; }
  std::size_t numElements() const {
    std::size_t total = 1;
    for (const auto extent : extents)
      total *= extent;
    return total;
  }
  Tensor slice(std::size_t begin, std::size_t end) const { // of the first dimension
    if (extents.empty() || begin > end || end > extents[0])
      throw poplar_error("slice outside its tensor");
    const std::size_t row = extents[0] ? numElements() / extents[0] : 0;
    std::vector<stub::Run> kept;
    std::size_t place = 0;
    for (const auto &run : parts) {
      const std::size_t low = std::max(place, begin * row), high = std::min(place + run.count, end * row);
      if (low < high)
        kept.push_back({run.variable, run.first + low - place, high - low});
      place += run.count;
    }
    auto shape = extents;
    shape[0] = end - begin;
    return {std::move(kept), std::move(shape)};
  }
  Tensor operator[](std::size_t index) const {
    const Tensor one = slice(index, index + 1);
    return {one.parts, {extents.begin() + 1, extents.end()}};
  }

private:
  std::vector<stub::Run> parts;
  std::vector<std::size_t> extents;
};

/// One-dimensional tensors one after another.
inline Tensor concat(const std::vector<Tensor> &tensors) {
  std::vector<stub::Run> runs;
  std::size_t total = 0;
  for (const auto &tensor : tensors) {
    if (tensor.shape().size() != 1 || tensor.elementType() != tensors[0].elementType())
      throw poplar_error("concat of tensors that do not fit together");
    runs.insert(runs.end(), tensor.runs().begin(), tensor.runs().end());
    total += tensor.numElements();
  }
  return {std::move(runs), {total}};
}

struct ComputeSet {
  std::size_t number;
};

namespace stub {

struct PlacedVertex {
  const Codelet *codelet;
  std::map<std::string, Tensor> fields;
  std::map<std::string, long long> values;
  unsigned tile = UNMAPPED;
  std::uint64_t cycles = 0;
};

struct State {
  Target target;
  std::vector<std::vector<std::shared_ptr<PlacedVertex>>> sets;
  std::vector<std::shared_ptr<Variable>> variables;
  std::map<std::string, Tensor> writes, reads;
};

} // namespace stub

struct FieldRef {
  std::shared_ptr<stub::PlacedVertex> vertex;
  std::string name;
};

class VertexRef {
public:
  explicit VertexRef(std::shared_ptr<stub::PlacedVertex> vertex) : vertex(std::move(vertex)) {}
  FieldRef operator[](const std::string &field) const { return {vertex, field}; }
  std::shared_ptr<stub::PlacedVertex> vertex;
};

class Graph {
public:
  explicit Graph(const Target &target) : state(std::make_shared<stub::State>()) { state->target = target; }

  const Target &getTarget() const { return state->target; }
  /// Codelets are compiled together with the host program here, so there is nothing to read.
  bool addCodelets(const std::string &) { return true; }

  Tensor addVariable(const Type &type, std::initializer_list<std::size_t> shape, const std::string &name) {
    auto made = std::make_shared<stub::Variable>(stub::Variable{type, shape, name, {}, {}});
    std::size_t total = 1;
    for (const auto extent : shape)
      total *= extent;
    made->tile.assign(total, stub::UNMAPPED);
    made->data.assign(total * type.bytes, 0xff);
    state->variables.push_back(made);
    return {{{made, 0, total}}, shape};
  }
  void setTileMapping(const Tensor &tensor, unsigned tile) {
    known(tile);
    for (const auto &run : tensor.runs())
      for (std::size_t i = 0; i < run.count; ++i)
        run.variable->tile[run.first + i] = tile;
  }
  void setTileMapping(const VertexRef &vertex, unsigned tile) {
    known(tile);
    vertex.vertex->tile = tile;
  }
  ComputeSet addComputeSet(const std::string &) {
    state->sets.emplace_back();
    return {state->sets.size() - 1};
  }
  VertexRef addVertex(ComputeSet set, const std::string &name, std::initializer_list<std::pair<const char *, Tensor>> connections) {
    auto made = std::make_shared<stub::PlacedVertex>();
    made->codelet = &stub::codelet(name);
    for (const auto &[field, tensor] : connections)
      made->fields.emplace(field, tensor);
    state->sets[set.number].push_back(made);
    return VertexRef(made);
  }
  void setInitialValue(const FieldRef &field, long long value) { field.vertex->values[field.name] = value; }
  void setPerfEstimate(const VertexRef &vertex, std::uint64_t cycles) { vertex.vertex->cycles = cycles; }
  void createHostWrite(const std::string &handle, const Tensor &tensor) { state->writes.emplace(handle, tensor); }
  void createHostRead(const std::string &handle, const Tensor &tensor) { state->reads.emplace(handle, tensor); }

  std::shared_ptr<stub::State> state;

private:
  void known(unsigned tile) const {
    if (tile >= state->target.getNumTiles())
      throw poplar_error("no such tile: " + std::to_string(tile));
  }
};

} // namespace poplar
