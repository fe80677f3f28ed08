// A stand-in, written for roller and no part of Graphcore's SDK: see README.md of this folder.
// Which codelets there are. The SDK's compiler finds that out by itself; here one file lists them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace poplar::stub {

struct Field {
  std::size_t element_bytes; // 0: a plain value
  unsigned alignment;
  bool written;
  std::function<void(void *vertex, void *data, std::size_t elements)> connect;
  std::function<void(void *vertex, long long value)> set;
};

struct Codelet {
  std::string name;
  std::map<std::string, Field> fields;
  unsigned workers;
  std::function<std::shared_ptr<void>()> make;
  std::function<bool(void *vertex, unsigned worker)> compute;
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

template <typename V, typename F> std::pair<const std::string, Field> view(const char *name, F V::*member) {
  const auto connect = [member](void *vertex, void *data, std::size_t elements) {
    (static_cast<V *>(vertex)->*member).connect(data, elements);
  };
  return {name, {sizeof(typename F::Element), F::ALIGNMENT, F::WRITTEN, connect, nullptr}};
}

template <typename V, typename T> std::pair<const std::string, Field> value(const char *name, T V::*member) {
  const auto set = [member](void *vertex, long long given) { static_cast<V *>(vertex)->*member = T(given); };
  return {name, {0, 0, false, nullptr, set}};
}

template <typename V> bool enlist(const char *name, std::initializer_list<std::pair<const std::string, Field>> fields) {
  const auto compute = [](void *vertex, unsigned worker) { return static_cast<V *>(vertex)->compute(worker); };
  codelets()[name] = {name, fields, V::numWorkers(), [] { return std::make_shared<V>(); }, compute};
  return true;
}

} // namespace poplar::stub
