// Which level of vector instructions this processor gets, and a library's table of kernels for it.
//
// Included by code that is compiled for every processor, never by kernels.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstring>

#if defined(__linux__) && defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tidal {

// Whether the processor has AMX for bfloat16 and bytes, and Linux lets this process use its registers, which needs a request.
inline bool may_use_tiles() {
#if defined(__linux__) && defined(__x86_64__)
    constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25, kAll = kBf16 | kTile | kInt8;
    constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & kAll) == kAll &&
           syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
    return false;
#endif
}

// Whether this processor runs a level, by the level's name in tidal/compiling.py.
inline bool runs_here(const char* level) {
    __builtin_cpu_init();
    if (std::strcmp(level, "plain") == 0) return true;
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return false;
    if (std::strcmp(level, "avx2") == 0) return true;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512bw"))
        return false;
    if (std::strcmp(level, "avx512") == 0) return true;
    // Products of bytes; Cascade Lake and Ice Lake have them without those of bfloat16.
    if (!__builtin_cpu_supports("avx512vnni")) return false;
    if (std::strcmp(level, "avx512vnni") == 0) return true;
    if (!__builtin_cpu_supports("avx512bf16")) return false;
    if (std::strcmp(level, "avx512bf16") == 0) return true;
    return std::strcmp(level, "amx") == 0 && may_use_tiles();
}

// The tables of a library's levels, best first; the last one runs on every processor. From any thread.
template <class Kernels, std::size_t count>
class Dispatch {
public:
    constexpr explicit Dispatch(const Kernels* const (&tables)[count]) : tables_(tables) {}

    // The best level that this processor runs, or the one that was chosen.
    const Kernels& kernels() {
        const Kernels* table = chosen_.load(std::memory_order_acquire);
        if (!table) {
            table = best();
            chosen_.store(table, std::memory_order_release);
        }
        return *table;
    }

    // Choose a level by name, or the best one by "auto"; false where this processor does not run it.
    bool choose(const char* level) {
        if (std::strcmp(level, "auto") == 0) {
            chosen_ = best();
            return true;
        }
        for (const Kernels* table : tables_) {
            if (std::strcmp(level, table->name) == 0 && runs_here(level)) {
                chosen_ = table;
                return true;
            }
        }
        return false;
    }

private:
    const Kernels* best() const {
        for (const Kernels* table : tables_)
            if (runs_here(table->name)) return table;
        return tables_[count - 1];
    }

    const Kernels* const (&tables_)[count];
    std::atomic<const Kernels*> chosen_{nullptr};
};

}  // namespace tidal
