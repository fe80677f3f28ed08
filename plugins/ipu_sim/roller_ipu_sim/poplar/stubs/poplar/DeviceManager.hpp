// A stand-in, written for roller and no part of Graphcore's SDK: see README.md of this folder.
// Devices: none is ever attached here.
#pragma once

#include "Graph.hpp"

namespace poplar {

enum class TargetType { IPU, IPU_MODEL, CPU };

class Device {
public:
  explicit Device(const Target &target) : target(target) {}
  const Target &getTarget() const { return target; }
  bool attach() const { return false; }

private:
  Target target;
};

class DeviceManager {
public:
  static DeviceManager createDeviceManager() { return {}; }
  std::vector<Device> getDevices(TargetType, unsigned) const { return {}; }
};

} // namespace poplar
