// x
module;
#include <stdexcept>
module replay:device.impl;
import gpumem;
import :device;
namespace replay {
chosen_device choose_device(device_choice) { throw std::runtime_error("x"); }
} // namespace replay
