// Packing of matrices into panels.
#pragma once

#include "kernels.hpp"

namespace tidal {

// Fill the panels of a matrix; see `tidal_pack`.
void pack(const Matrix& matrix, int threads, const void* weights, const void* scales);

}  // namespace tidal
