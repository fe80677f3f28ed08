// A stand-in, written for roller and no part of Graphcore's SDK: see README.md of this folder.
// Which codelets there are. The SDK's compiler finds that out by itself; here one file lists them.
#pragma once

#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

namespace poplar::stub {

struct Field {
  const char *name;
  std::size_t element_bytes; // 0: a plain value
  unsigned alignment;
  bool written;
  void (*connect)(void *vertex, void *data, std::size_t elements);
  void (*set)(void *vertex, long long value);
};

struct Codelet {
  std::string name;
  std::map<std::string, Field> fields;
  unsigned workers;
  std::shared_ptr<void> (*make)();
  bool (*compute)(void *vertex, unsigned worker);
};

inline std::map<std::string, Codelet> &codelets() {
  static std::map<std::string, Codelet> all;
  return all;
}

inline const Codelet &codelet(const std::string &name) {
  const auto found = codelets().find(name);
  if (found == codelets().end())
    throw std::runtime_error("no codelet named " + name);
  return found->second;
}

/// A class, and the type of one of its members, from a pointer to it.
template <typename T> struct Member;
template <typename V, typename F> struct Member<F V::*> {
  using Vertex = V;
  using Type = F;
};

template <auto member> Field view(const char *name) {
  using V = typename Member<decltype(member)>::Vertex;
  using F = typename Member<decltype(member)>::Type;
  const auto connect = [](void *vertex, void *data, std::size_t elements) {
    (static_cast<V *>(vertex)->*member).connect(data, elements);
  };
  return {name, sizeof(typename F::Element), F::ALIGNMENT, F::WRITTEN, connect, nullptr};
}

template <auto member> Field value(const char *name) {
  using V = typename Member<decltype(member)>::Vertex;
  using T = typename Member<decltype(member)>::Type;
  return {name, 0, 0, false, nullptr, [](void *vertex, long long given) { static_cast<V *>(vertex)->*member = T(given); }};
}

inline void enlist(Codelet codelet, std::initializer_list<Field> fields) {
  for (const auto &field : fields)
    codelet.fields.emplace(field.name, field);
  codelets().emplace(codelet.name, std::move(codelet));
}

template <typename V> bool enlist(const char *name, std::initializer_list<Field> fields) {
  const auto make = [] { return std::shared_ptr<void>(new V, [](void *vertex) { delete static_cast<V *>(vertex); }); };
  const auto compute = [](void *vertex, unsigned worker) { return static_cast<V *>(vertex)->compute(worker); };
  enlist({name, {}, V::numWorkers(), make, compute}, fields);
  return true;
}

} // namespace poplar::stub
