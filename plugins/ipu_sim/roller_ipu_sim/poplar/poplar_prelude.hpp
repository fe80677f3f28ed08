#include <algorithm>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <poplar/DeviceManager.hpp>
#include <poplar/Engine.hpp>
#include <poplar/Graph.hpp>
#include <poplar/IPUModel.hpp>
#include <poplar/Program.hpp>

using namespace poplar;
using program::Copy;
using program::Execute;
using program::Sequence;
using Extents = std::vector<std::size_t>;

/// Tiles first, first + step, ...
struct Tiles {
  unsigned first, count, step;
};

static std::vector<unsigned> numbers(const std::vector<Tiles> &sets) {
  std::vector<unsigned> found;
  for (const auto &set : sets)
    for (unsigned i = 0; i < set.count; ++i)
      found.push_back(set.first + i * set.step);
  return found;
}

/// One variable: a row of elements for each tile that holds the buffer.
class Buffer {
public:
  Buffer(Graph &graph, const Type &type, std::size_t elements, const std::vector<Tiles> &tiles, const char *name) {
    const auto all = numbers(tiles);
    variable = graph.addVariable(type, {all.size(), elements}, name);
    for (std::size_t row = 0; row < all.size(); ++row) {
      graph.setTileMapping(variable[row], all[row]);
      rows[all[row]] = row;
    }
  }
  /// Elements of one tile's row.
  Tensor part(unsigned tile, std::size_t offset, std::size_t count) const {
    return variable[rows.at(tile)].slice(offset, offset + count);
  }

private:
  Tensor variable;
  std::map<unsigned, std::size_t> rows;
};

/// One exchange: all parts that leave tiles and all places where they arrive, as one copy. A part that several tiles receive
/// is a source several times, which is how Poplar is told of a multicast.
class Exchange {
public:
  /// A strided box of one tile's buffer, to the same place in every tile of a set (but the tile itself, with `others`); the last
  /// dimension is a run.
  void send(const Buffer &from, unsigned tile, std::size_t offset, const Buffer &to, const std::vector<Tiles> &receivers,
            std::size_t to_offset, const Extents &shape, const Extents &strides, const Extents &to_strides, bool others = false) {
    for (const auto receiver : numbers(receivers))
      if (!others || receiver != tile)
        box(0, offset, to_offset, shape, strides, to_strides, [&](std::size_t here, std::size_t there) {
          sources.push_back(from.part(tile, here, shape.back()));
          targets.push_back(to.part(receiver, there, shape.back()));
        });
  }
  void add_to(Sequence &program) const { program.add(Copy(concat(sources), concat(targets))); }

private:
  std::vector<Tensor> sources, targets;

  static void box(std::size_t dim, std::size_t here, std::size_t there, const Extents &shape, const Extents &strides,
                  const Extents &to_strides, const std::function<void(std::size_t, std::size_t)> &use) {
    if (dim + 1 == shape.size())
      return use(here, there);
    for (std::size_t i = 0; i < shape[dim]; ++i)
      box(dim + 1, here + i * strides[dim], there + i * to_strides[dim], shape, strides, to_strides, use);
  }
};

/// A stored coordinate of an element: (index[dim] / divisor) % modulus, without the remainder where modulus is 0.
struct Digit {
  std::size_t dim, divisor, modulus;
};

/// An array of the host, in a file of its elements in row-major order, and where the device keeps it: padded, reordered, in parts.
class HostArray {
public:
  HostArray(std::string file, bool read, std::size_t bytes, Extents shape, std::vector<Digit> layout, Extents stored)
      : file(std::move(file)), read(read), bytes(bytes), shape(std::move(shape)), layout(std::move(layout)), stored(std::move(stored)) {}

  /// Elements first ... first + count of a box of the stored array lie in a tile's buffer.
  void place(const Buffer &buffer, unsigned tile, std::size_t offset, Extents start, Extents box, std::size_t first, std::size_t count) {
    views.push_back(buffer.part(tile, offset, count));
    parts.push_back({std::move(start), std::move(box), first, count});
  }
  /// A whole box lies in a tile's buffer with these steps between neighbours; the last dimension is a run.
  void place(const Buffer &buffer, unsigned tile, std::size_t offset, Extents start, const Extents &box, const Extents &strides) {
    const std::size_t run = box.empty() ? 1 : box.back();
    Extents rows = box, one(box.size(), 1);
    if (!box.empty())
      rows.back() = 1, one.back() = run;
    for (std::size_t index = 0; index < product(rows); ++index) {
      const Extents at = position(index, rows);
      Extents from = start;
      std::size_t here = offset;
      for (std::size_t dim = 0; dim < at.size(); ++dim) {
        from[dim] += at[dim];
        here += at[dim] * strides[dim];
      }
      place(buffer, tile, here, from, one, 0, run);
    }
  }
  void connect(Graph &graph) const {
    if (read)
      graph.createHostWrite(file, concat(views));
    else
      graph.createHostRead(file, concat(views));
  }
  void write(Engine &engine, const std::string &folder) const {
    if (!read)
      return;
    std::ifstream stream(folder + "/" + file, std::ios::binary);
    std::vector<char> array(bytes * product(shape)), whole(bytes * product(stored)), device;
    if (!stream.read(array.data(), std::streamsize(array.size())))
      throw std::runtime_error(file + " cannot be read, or is too short");
    elements([&](std::size_t index, std::size_t place) { std::memcpy(&whole[place * bytes], &array[index * bytes], bytes); });
    placed([&](std::size_t place) { device.insert(device.end(), &whole[place * bytes], &whole[place * bytes] + bytes); });
    engine.writeTensor(file, device.data(), device.data() + device.size());
  }
  void fetch(Engine &engine, const std::string &folder) const {
    if (read)
      return;
    std::vector<char> array(bytes * product(shape)), whole(bytes * product(stored)), device;
    std::size_t next = 0;
    placed([&](std::size_t) { next += bytes; });
    device.resize(next);
    engine.readTensor(file, device.data(), device.data() + device.size());
    next = 0;
    placed([&](std::size_t place) { std::memcpy(&whole[place * bytes], &device[std::exchange(next, next + bytes)], bytes); });
    elements([&](std::size_t index, std::size_t place) { std::memcpy(&array[index * bytes], &whole[place * bytes], bytes); });
    std::ofstream stream(folder + "/" + file, std::ios::binary);
    if (!stream.write(array.data(), std::streamsize(array.size())))
      throw std::runtime_error(file + " cannot be written");
  }

private:
  struct Part {
    Extents start, box;
    std::size_t first, count;
  };
  std::string file;
  bool read;
  std::size_t bytes;
  Extents shape;
  std::vector<Digit> layout;
  Extents stored;
  std::vector<Tensor> views;
  std::vector<Part> parts;

  static std::size_t product(const Extents &extents) {
    std::size_t total = 1;
    for (const auto extent : extents)
      total *= extent;
    return total;
  }
  static Extents position(std::size_t index, const Extents &extents) {
    Extents found(extents.size());
    for (std::size_t dim = extents.size(); dim-- > 0; index /= extents[dim])
      found[dim] = index % extents[dim];
    return found;
  }
  /// Every element of the array, and where it lies in the stored array.
  template <typename Use> void elements(Use use) const {
    for (std::size_t index = 0; index < product(shape); ++index) {
      const Extents at = position(index, shape);
      std::size_t place = 0;
      for (std::size_t dim = 0; dim < layout.size(); ++dim) {
        const std::size_t quotient = at[layout[dim].dim] / layout[dim].divisor;
        place = place * stored[dim] + (layout[dim].modulus ? quotient % layout[dim].modulus : quotient);
      }
      use(index, place);
    }
  }
  /// Places in the stored array, in the order of the device's parts.
  template <typename Use> void placed(Use use) const {
    for (const auto &part : parts)
      for (std::size_t index = part.first; index < part.first + part.count; ++index) {
        const Extents at = position(index, part.box);
        std::size_t place = 0;
        for (std::size_t dim = 0; dim < stored.size(); ++dim)
          place = place * stored[dim] + part.start[dim] + at[dim];
        use(place);
      }
  }
};

/// An IPU of this machine that is free, or Poplar's model of one version ("ipu1", "ipu2", "ipu21").
static Device device(const char *model, unsigned tiles) {
  if (model) {
    IPUModel made(model);
    made.tilesPerIPU = tiles;
    return made.createDevice();
  }
  auto manager = DeviceManager::createDeviceManager();
  auto devices = manager.getDevices(TargetType::IPU, 1);
  for (auto &found : devices)
    if (found.getTarget().getNumTiles() >= tiles && found.attach())
      return std::move(found);
  throw std::runtime_error("no free IPU with so many tiles; name a model as the second argument to do without");
}

static int run(int argc, char **argv, unsigned tiles, void (*build)(Graph &, Sequence &, std::vector<HostArray> &)) {
  if (argc < 2) {
    std::cerr << "arguments: the folder with the arrays, and perhaps the IPU version to model\n";
    return 2;
  }
  try {
    const Device target = device(argc > 2 ? argv[2] : nullptr, tiles);
    Graph graph(target.getTarget());
    graph.addCodelets("codelets.cpp");
    Sequence program;
    std::vector<HostArray> arrays;
    build(graph, program, arrays);
    for (const auto &array : arrays)
      array.connect(graph);
    Engine engine(graph, program);
    engine.load(target);
    for (const auto &array : arrays)
      array.write(engine, argv[1]);
    engine.run(0);
    for (const auto &array : arrays)
      array.fetch(engine, argv[1]);
  } catch (const std::exception &error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
