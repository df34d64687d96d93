// The activations that kernels compute, by the numbers that Python passes.
#pragma once

#include <cstdint>

namespace tidal {

enum class Activation : std::int32_t { none, relu, gelu, gelu_tanh, silu, tanh };

}  // namespace tidal
