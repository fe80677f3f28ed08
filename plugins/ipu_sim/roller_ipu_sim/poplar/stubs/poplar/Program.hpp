// A stand-in, written for roller and no part of Graphcore's SDK: see README.md of this folder.
// Control programs: sequences of copies and of compute sets.
#pragma once

#include "Graph.hpp"

namespace poplar::program {

class Program {
public:
  struct Node {
    enum { SEQUENCE, COPY, EXECUTE } kind;
    std::vector<std::shared_ptr<Node>> steps;
    Tensor source, target;
    std::size_t set;
  };
  std::shared_ptr<Node> node;

protected:
  explicit Program(Node made) : node(std::make_shared<Node>(std::move(made))) {}
};

class Sequence : public Program {
public:
  Sequence() : Program({Node::SEQUENCE, {}, {}, {}, 0}) {}
  void add(const Program &program) { node->steps.push_back(program.node); }
};

class Copy : public Program {
public:
  Copy(const Tensor &source, const Tensor &target) : Program({Node::COPY, {}, source, target, 0}) {
    if (source.shape() != target.shape() || source.elementType() != target.elementType())
      throw poplar_error("a copy between tensors of different shape or type");
  }
};

class Execute : public Program {
public:
  explicit Execute(ComputeSet set) : Program({Node::EXECUTE, {}, {}, {}, set.number}) {}
};

} // namespace poplar::program
