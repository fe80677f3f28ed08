// A stand-in, written for roller and no part of Graphcore's SDK: see README.md of this folder.
#pragma once

#include "DeviceManager.hpp"

namespace poplar {

class IPUModel {
public:
  explicit IPUModel(const char *) {}
  unsigned tilesPerIPU = 0;
  Device createDevice() const { return Device(Target(tilesPerIPU)); }
};

} // namespace poplar
