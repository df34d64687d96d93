// The C interface: packing of matrices, linear layers, attention and whole passes, spread over threads.
#include <sys/mman.h>

#include <cstring>

#include "kernels.hpp"
#include "linear.hpp"
#include "operations.hpp"
#include "packing.hpp"
#include "workers.hpp"

#define TIDAL_EXPORT extern "C" __attribute__((visibility("default")))

using namespace tidal;

// A whole pass in one call, over rows of any slots in any order: prefill, decode, or both. `widths` [buffers] are the
// widths of a row. Operations with `last` process only the rows `wanted`, in ascending order and contiguous; all rows if
// it is null.
TIDAL_EXPORT void tidal_pass(std::int32_t threads, std::int32_t count, const Operation* operations, std::int32_t rows,
                             const std::int64_t* ids, const std::int64_t* slots, const std::int64_t* positions,
                             float* const* buffers, const std::int32_t* widths, const std::int32_t* wanted,
                             std::int32_t wanted_rows) {
    Rows all{rows, ids, slots, positions};
    bool cut = false;
    for (std::int32_t number = 0; number < count; ++number) {
        const Operation& each = operations[number];
        if (each.last && wanted && !cut) {
            cut = true;
            const std::size_t width = widths[each.from];
            float* const kept = buffers[each.from];
            for (std::int32_t row = 0; row < wanted_rows; ++row)
                if (wanted[row] != row) std::memcpy(kept + row * width, kept + wanted[row] * width, width * sizeof *kept);
            all.count = wanted_rows;
        }
        if (each.joined && joins(each, operations[number + 1], all.count)) {
            carry_out_joined(each, operations[++number], threads, all, buffers);
            continue;
        }
        carry_out(each, threads, all, buffers);
    }
}

TIDAL_EXPORT const char* tidal_kernels() { return kernels().name; }

TIDAL_EXPORT bool tidal_choose_kernels(const char* name) { return choose_kernels(name); }

// Size of a packed matrix in bytes.
TIDAL_EXPORT std::int64_t tidal_packed_bytes(const Matrix* matrix) {
    return static_cast<std::int64_t>(matrix->panel_bytes() * matrix->panels_count());
}

// Pack a matrix into its `panels`. `weights` [outputs, inputs] is float32 or bfloat16, or has one byte per weight, [outputs,
// groups * group]; `scales` is float32 [outputs] for int8, and pairs of scale and minimum, bfloat16 [outputs, groups, 2], for
// int4.
TIDAL_EXPORT void tidal_pack(const Matrix* matrix, std::int32_t threads, const void* weights, const void* scales) {
    pack(*matrix, threads, weights, scales);
}

// Request large pages for memory that was not written yet.
TIDAL_EXPORT void tidal_large_pages(void* from, std::size_t bytes) {
    const std::uintptr_t page = std::uintptr_t{1} << 21, begin = reinterpret_cast<std::uintptr_t>(from);
    const std::uintptr_t first = (begin + page - 1) & ~(page - 1), last = (begin + bytes) & ~(page - 1);
    if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

TIDAL_EXPORT void tidal_linear(const Matrix* matrix, std::int32_t threads, std::int32_t rows, const float* input,
                               const float* added, std::int32_t activation, float* output) {
    linear(*matrix, threads, rows, input, added, activation, output);
}

// The operation `attend` alone; `made` and `output` stand in for its buffers.
TIDAL_EXPORT void tidal_attention(const Operation* operation, std::int32_t threads, std::int32_t rows, const float* made,
                                  const std::int64_t* slots, const std::int64_t* positions, float* output) {
    const Rows all{rows, nullptr, slots, positions};
    attend(*operation, threads, all, made, output);
}

TIDAL_EXPORT void tidal_low_rank(std::int32_t threads, std::int32_t rows, std::int32_t inputs, std::int32_t outputs,
                                 const float* input, const std::int64_t* begins, const std::int64_t* ends,
                                 const float* down, const float* up, const float* added, float* output) {
    const LowRank task{inputs, outputs, input, begins, ends, down, up, added, output};
    const auto& run = kernels().low_rank;
    for_ranges(threads, rows, rows, [&](int begin, int end) {
        for (int row = begin; row < end; ++row) run(task, row);
    });
}
