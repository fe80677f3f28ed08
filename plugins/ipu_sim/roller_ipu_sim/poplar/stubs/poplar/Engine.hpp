// A stand-in, written for roller and no part of Graphcore's SDK: see README.md of this folder.
// Runs a control program on the host: one step, one vertex, one worker after another. Refuses what would be wrong on the device:
// elements on no tile, fields on another tile, vertices of a compute set that disturb one another, copies onto their own source,
// workers that store to one 32-bit word (which they would do by reading it, changing a part, and writing it back).
#pragma once

#include <cstring>
#include <tuple>

#include "DeviceManager.hpp"
#include "Graph.hpp"
#include "Program.hpp"

namespace poplar {

class Engine {
public:
  Engine(const Graph &graph, const program::Program &program) : state(graph.state), program(program) {
    for (const auto &variable : state->variables)
      for (const auto tile : variable->tile)
        if (tile == stub::UNMAPPED)
          throw poplar_error("variable " + variable->name + " has elements on no tile");
    for (const auto &set : state->sets)
      check(set);
  }
  void load(const Device &) {}
  void writeTensor(const std::string &handle, const void *first, const void *last) {
    const auto bytes = static_cast<const unsigned char *>(first);
    scatter(state->writes.at(handle), {bytes, static_cast<const unsigned char *>(last)});
  }
  void readTensor(const std::string &handle, void *first, void *last) {
    const auto bytes = gathered(state->reads.at(handle));
    if (bytes.size() != std::size_t(static_cast<unsigned char *>(last) - static_cast<unsigned char *>(first)))
      throw poplar_error("handle " + handle + " has another size");
    std::memcpy(first, bytes.data(), bytes.size());
  }
  void run(unsigned = 0) { walk(*program.node); }

private:
  using Bytes = std::vector<unsigned char>;
  using Node = program::Program::Node;
  using Interval = std::tuple<const stub::Variable *, std::size_t, std::size_t, bool>; // first and last element, written

  std::shared_ptr<stub::State> state;
  program::Program program;

  static Bytes gathered(const Tensor &tensor) {
    Bytes bytes;
    for (const auto &run : tensor.runs()) {
      const auto size = run.variable->type.bytes;
      const auto first = run.variable->data.begin() + std::ptrdiff_t(run.first * size);
      bytes.insert(bytes.end(), first, first + std::ptrdiff_t(run.count * size));
    }
    return bytes;
  }
  static void scatter(const Tensor &tensor, const Bytes &bytes) {
    std::size_t place = 0;
    for (const auto &run : tensor.runs()) {
      const auto size = run.variable->type.bytes;
      if (place + run.count * size > bytes.size())
        throw poplar_error("fewer bytes than a tensor has");
      std::memcpy(run.variable->data.data() + run.first * size, bytes.data() + place, run.count * size);
      place += run.count * size;
    }
    if (place != bytes.size())
      throw poplar_error("more bytes than a tensor has");
  }
  static void add(std::vector<Interval> &all, const Tensor &tensor, bool written) {
    for (const auto &run : tensor.runs())
      all.emplace_back(run.variable.get(), run.first, run.first + run.count - 1, written);
  }
  static void disjoint(std::vector<Interval> all, const std::string &what) { // where one of two is written
    std::sort(all.begin(), all.end());
    const Interval *reaching = nullptr, *written = nullptr; // so far the furthest, and the furthest of those written
    for (const auto &one : all) {
      const auto *other = std::get<3>(one) ? reaching : written;
      if (other && std::get<0>(*other) == std::get<0>(one) && std::get<2>(*other) >= std::get<1>(one))
        throw poplar_error(what + " disturb one another in variable " + std::get<0>(one)->name);
      const auto further = [&one](const Interval *than) {
        return !than || std::get<0>(*than) != std::get<0>(one) || std::get<2>(*than) < std::get<2>(one);
      };
      if (further(reaching))
        reaching = &one;
      if (std::get<3>(one) && further(written))
        written = &one;
    }
  }
  static void check(const std::vector<std::shared_ptr<stub::PlacedVertex>> &set) {
    std::vector<Interval> touched;
    for (const auto &vertex : set) {
      const std::string who = "vertex " + vertex->codelet->name;
      std::size_t filled = 0;
      for (const auto &[name, tensor] : vertex->fields) {
        const auto &field = vertex->codelet->fields.at(name);
        if (tensor.runs().size() != 1 || tensor.shape().size() != 1)
          throw poplar_error(who + ": field " + name + " is not one piece of memory");
        const auto &run = tensor.runs()[0];
        if (field.element_bytes != run.variable->type.bytes)
          throw poplar_error(who + ": field " + name + " has another type");
        if (start(run) % field.alignment)
          throw poplar_error(who + ": field " + name + " is not aligned");
        for (std::size_t i = 0; i < run.count; ++i)
          if (run.variable->tile[run.first + i] != vertex->tile)
            throw poplar_error(who + ": field " + name + " lies on another tile");
        add(touched, tensor, field.written);
        ++filled;
      }
      if (filled + vertex->values.size() != vertex->codelet->fields.size())
        throw poplar_error(who + " has fields that nothing is connected to");
    }
    disjoint(std::move(touched), "vertices of a compute set");
  }
  /// Where a run starts in its tile's memory, in bytes from the start of its variable's part there.
  static std::size_t start(const stub::Run &run) {
    const auto &shape = run.variable->shape;
    const std::size_t row = shape.size() == 2 ? shape[1] : run.first + 1;
    return run.first % row * run.variable->type.bytes;
  }
  void walk(const Node &node) {
    if (node.kind == Node::EXECUTE)
      for (const auto &vertex : state->sets[node.set])
        execute(*vertex);
    else if (node.kind == Node::COPY) {
      std::vector<Interval> touched;
      add(touched, node.source, false);
      add(touched, node.target, true);
      disjoint(std::move(touched), "source and target of a copy");
      scatter(node.target, gathered(node.source));
    }
    for (const auto &step : node.steps)
      walk(*step);
  }
  static void execute(const stub::PlacedVertex &vertex) {
    struct Written {
      unsigned char *memory;
      std::size_t skew; // bytes from the start of the first word
      Bytes before, after;
      std::vector<int> owner; // of each word: the worker that stored to it
    };
    const auto made = vertex.codelet->make();
    std::vector<Written> all;
    for (const auto &[name, tensor] : vertex.fields) {
      const auto &run = tensor.runs()[0];
      const auto size = run.variable->type.bytes;
      const auto &field = vertex.codelet->fields.at(name);
      auto *memory = run.variable->data.data() + run.first * size;
      field.connect(made.get(), memory, run.count);
      if (field.written) {
        const std::size_t skew = start(run) % 4;
        const Bytes before(memory, memory + run.count * size);
        all.push_back({memory, skew, before, before, std::vector<int>((skew + before.size() + 3) / 4, -1)});
      }
    }
    for (const auto &[name, number] : vertex.values)
      vertex.codelet->fields.at(name).set(made.get(), number);
    for (unsigned worker = 0; worker < vertex.codelet->workers; ++worker) {
      if (!vertex.codelet->compute(made.get(), worker))
        throw poplar_error("vertex " + vertex.codelet->name + " reports failure");
      for (auto &field : all) { // what this worker stored; the next one starts from what all of them started from
        for (std::size_t i = 0; i < field.before.size(); ++i)
          if (field.memory[i] != field.before[i]) {
            int &owner = field.owner[(field.skew + i) / 4];
            if (owner != -1 && owner != int(worker))
              throw poplar_error("vertex " + vertex.codelet->name + ": two workers store to one word");
            owner = int(worker);
            field.after[i] = field.memory[i];
          }
        std::memcpy(field.memory, field.before.data(), field.before.size());
      }
    }
    for (const auto &field : all)
      std::memcpy(field.memory, field.after.data(), field.after.size());
  }
};

} // namespace poplar
