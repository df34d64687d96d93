// Which level of kernels this processor gets.
#include <atomic>
#include <cstring>

#include "kernels.hpp"

namespace tidal {
namespace {

bool supported(const Kernels& level) {
    __builtin_cpu_init();
    if (&level == &kernels_plain) return true;
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return false;
    if (&level == &kernels_avx2) return true;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512bw"))
        return false;
    return &level == &kernels_avx512 || __builtin_cpu_supports("avx512bf16");
}

const Kernels* const levels[] = {&kernels_avx512bf16, &kernels_avx512, &kernels_avx2, &kernels_plain};

const Kernels* best() {
    for (const Kernels* level : levels)
        if (supported(*level)) return level;
    return &kernels_plain;
}

std::atomic<const Kernels*> chosen{nullptr};

}  // namespace

const Kernels& kernels() {
    const Kernels* level = chosen.load(std::memory_order_acquire);
    if (!level) {
        level = best();
        chosen.store(level, std::memory_order_release);
    }
    return *level;
}

bool choose_kernels(const char* name) {
    if (std::strcmp(name, "auto") == 0) {
        chosen = best();
        return true;
    }
    for (const Kernels* level : levels) {
        if (std::strcmp(name, level->name) == 0 && supported(*level)) {
            chosen = level;
            return true;
        }
    }
    return false;
}

}  // namespace tidal
