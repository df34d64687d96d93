// Which level of kernels this processor gets.
#include "dispatch.hpp"

#include "kernels.hpp"

namespace tidal {
namespace {

const Kernels* const tables[] = {&kernels_amx,    &kernels_avx512bf16, &kernels_avx512vnni,
                                 &kernels_avx512, &kernels_avx2,       &kernels_plain};
Dispatch dispatch(tables);

}  // namespace

const Kernels& kernels() { return dispatch.kernels(); }

bool choose_kernels(const char* level) { return dispatch.choose(level); }

}  // namespace tidal
