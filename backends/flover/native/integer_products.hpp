// Products of rows with a packed matrix of 8 or 4 bits: sums of integers in a group, then float32.
//
// A row is rounded to 16 bits, as two bytes, or to 8. Weights are bytes without sign, so that one instruction multiplies and
// sums four of them (VNNI). The sums of a group are exact: 128 * 255 * 32,512 is below 2^31.
//
// Included once in each level's compilation; everything is local to it, see kernels.hpp.
#pragma once

#include "byte_vectors.hpp"
#include "tiles.hpp"

namespace tidal {
namespace {

typedef std::int32_t UnalignedIntegers __attribute__((vector_size(kLanes * 4), aligned(1), may_alias));

// Largest integer of a row of 16 bits: its high byte is at most 127 with a low byte of -128 to 127.
constexpr float kMostOfTwoBytes = 32512.0f;

// sum + the products of four bytes in each lane, `unsigned_bytes` of at most 15 if `small`.
template <bool small>
inline Integers add_products(Integers sum, Integers unsigned_bytes, Integers signed_bytes) {
#if defined(__AVX512VNNI__)
    return reinterpret_cast<Integers>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sum),
                                                          reinterpret_cast<__m512i>(unsigned_bytes),
                                                          reinterpret_cast<__m512i>(signed_bytes)));
#elif defined(__AVX2__)
#if defined(__AVX512F__)
#define TIDAL_WIDE(name) _mm512_##name
    typedef __m512i Wide;
#else
#define TIDAL_WIDE(name) _mm256_##name
    typedef __m256i Wide;
#endif
    const Wide u = reinterpret_cast<Wide>(unsigned_bytes), s = reinterpret_cast<Wide>(signed_bytes);
    if constexpr (small) {
        const Wide pairs = TIDAL_WIDE(maddubs_epi16)(u, s);
        return sum + reinterpret_cast<Integers>(TIDAL_WIDE(madd_epi16)(pairs, TIDAL_WIDE(set1_epi16)(1)));
    } else {
        // Sums of two products of full bytes exceed 16 bits, so even and odd bytes are widened.
        const Wide even = TIDAL_WIDE(madd_epi16)(reinterpret_cast<Wide>(unsigned_bytes & 0x00ff00ff),
                                                 TIDAL_WIDE(srai_epi16)(TIDAL_WIDE(slli_epi16)(s, 8), 8));
        const Wide odd = TIDAL_WIDE(madd_epi16)(TIDAL_WIDE(srli_epi16)(u, 8), TIDAL_WIDE(srai_epi16)(s, 8));
        return sum + reinterpret_cast<Integers>(even) + reinterpret_cast<Integers>(odd);
    }
#undef TIDAL_WIDE
#else
    for (int byte = 0; byte < 32; byte += 8)
        sum += ((unsigned_bytes >> byte) & 0xff) * ((signed_bytes << (24 - byte)) >> 24);
    return sum;
#endif
}

inline Vector floats(Integers x) { return __builtin_convertvector(x, Vector); }

// A group's scales and minima of as many outputs as there are lanes.
inline void read_scales(const void* from, Vector& scale, Vector& minimum) {
    const Bits both = *reinterpret_cast<const UnalignedBits*>(from);
    scale = reinterpret_cast<Vector>(both << 16);
    minimum = reinterpret_cast<Vector>(both & 0xffff0000u);
}

// Products of `rows` rows of `bytes` bytes with a panel of weights of `bits` bits.
template <int bits, int bytes, int vectors, int rows>
void integer_tile(const IntegerProduct& task, int first_row, const char* panel, Fetch fetch, float* products) {
    constexpr int width = vectors * kUnit;
    const Matrix& matrix = task.matrix;
    const int groups = matrix.groups(), group = matrix.group;
    const std::size_t stride = static_cast<std::size_t>(groups) * group;
    const std::size_t group_bytes = static_cast<std::size_t>(width) * group * bits / 8;
    const std::size_t group_stride = group_bytes + (bits == 4 ? width * 4 : 0);
    const std::int8_t* inputs[2] = {task.input.high + first_row * stride,
                                    bytes == 2 ? task.input.low + first_row * stride : nullptr};
    const float* scales = task.input.scales + static_cast<std::size_t>(first_row) * groups;
    const std::int32_t* row_sums = task.input.sums + static_cast<std::size_t>(first_row) * groups;
    for (int column = 0; column < width; column += vectors * kLanes) {
        Vector sums[rows][vectors] = {};
        for (int g = 0; g < groups; ++g) {
            Integers found[rows][bytes][vectors] = {};
            const char* weight = panel + g * group_stride + column * 4;
            for (int i = g * group; i < (g + 1) * group; i += 32 / bits) {
                fetch.next();
                Integers read[vectors];
                for (int v = 0; v < vectors; ++v)
                    read[v] = *reinterpret_cast<const UnalignedIntegers*>(weight + v * kLanes * 4);
                weight += width * 4;
#pragma GCC unroll 2
                for (int half = 0; half < 8 / bits; ++half) {
                    Integers weights[vectors];
                    for (int v = 0; v < vectors; ++v)
                        weights[v] = bits == 8 ? read[v] : (half ? read[v] >> 4 : read[v]) & 0x0f0f0f0f;
#pragma GCC unroll 12
                    for (int row = 0; row < rows; ++row)
#pragma GCC unroll 2
                        for (int byte = 0; byte < bytes; ++byte) {
                            std::int32_t four;
                            __builtin_memcpy(&four, inputs[byte] + row * stride + i + 4 * half, 4);
                            for (int v = 0; v < vectors; ++v)
                                found[row][byte][v] =
                                    add_products<bits == 4>(found[row][byte][v], weights[v], Integers{} + four);
                        }
                }
            }
            for (int row = 0; row < rows; ++row) {
                const float scale = scales[row * groups + g];
                const std::int32_t row_sum = row_sums[row * groups + g];
                for (int v = 0; v < vectors; ++v) {
                    Integers total = found[row][0][v];
                    if constexpr (bytes == 2) total = total * 256 + found[row][1][v];
                    if constexpr (bits == 8) {
                        sums[row][v] += floats(total - 128 * row_sum) * scale;
                    } else {
                        Vector factor, minimum;
                        read_scales(panel + g * group_stride + group_bytes + (column + v * kLanes) * 4, factor, minimum);
                        sums[row][v] += (floats(total) * factor + minimum * static_cast<float>(row_sum)) * scale;
                    }
                }
            }
        }
        const float* factors = reinterpret_cast<const float*>(panel + groups * group_stride) + column;
        for (int row = 0; row < rows; ++row)
            for (int v = 0; v < vectors; ++v)
                store(products + row * width + column + v * kLanes,
                      bits == 8 ? sums[row][v] * load(factors + v * kLanes) : sums[row][v]);
    }
}

template <int bits, int bytes, int vectors, int rows>
void integer_tile_of(int wanted, const IntegerProduct& task, int first_row, const char* panel, Fetch fetch,
                     float* products) {
    if constexpr (rows > 1)
        if (wanted != rows)
            return integer_tile_of<bits, bytes, vectors, rows - 1>(wanted, task, first_row, panel, fetch, products);
    integer_tile<bits, bytes, vectors, rows>(task, first_row, panel, fetch, products);
}

template <int bits, int bytes, int vectors>
void integer_product_of(const IntegerProduct& task, int first_panel, int last_panel) {
    constexpr int most = kSums / vectors / bytes > 0 ? kSums / vectors / bytes : 1;
    const int wanted = task.matrix.tiling.rows / bytes, rows = wanted < 1 ? 1 : wanted < most ? wanted : most;
    for_blocks(task.matrix, task.rows, rows, task.matrix.groups() * task.matrix.group * bits / 32, first_panel,
               last_panel, task.output, [&](int first_row, int count, const char* panel, Fetch fetch, float* products) {
                   integer_tile_of<bits, bytes, vectors, most>(count, task, first_row, panel, fetch, products);
               });
}

template <int bits, int bytes>
void integer_product_in(const IntegerProduct& task, int first_panel, int last_panel) {
    switch (task.matrix.tiling.vectors) {
        case 2: return integer_product_of<bits, bytes, 2>(task, first_panel, last_panel);
        case 3: return integer_product_of<bits, bytes, 3>(task, first_panel, last_panel);
        default: return integer_product_of<bits, bytes, 4>(task, first_panel, last_panel);
    }
}

void round_to_integers(const IntegerRounding& task) {
    const int groups = (task.inputs + task.group - 1) / task.group;
    alignas(64) float padded[kMostGroup];
    for (int g = 0; g < groups; ++g) {
        const float* from = task.input + g * task.group;
        const int left = task.inputs - g * task.group;
        if (left < task.group) {
            for (int i = 0; i < task.group; ++i) padded[i] = i < left ? from[i] : 0.0f;
            from = padded;
        }
        Vector most{}, not_finite{};
        for (int i = 0; i < task.group; i += kLanes) {
            const Vector x = load(from + i), size = absolute(x);
            most = select(size > most, size, most);
            not_finite += x * 0.0f;
        }
        const float largest = highest(most), steps = task.low ? kMostOfTwoBytes : kMostOfByte;
        // Groups of numbers that are too small to divide by are 0.
        const float factor = largest > 1e-30f ? steps / largest : 0.0f;
        Integers sums{};
        for (int i = 0; i < task.group; i += kLanes) {
            const Integers x = nearest(load(from + i) * factor);
            sums += x;
            const Integers high = task.low ? (x + 128) >> 8 : x;
            const int at = g * task.group + i;
            const std::size_t place = at / task.part * task.stride + at % task.part;
            store_bytes(task.high + place, high);
            if (task.low) store_bytes(task.low + place, x - high * 256);
        }
        std::int32_t total = 0;
        for (int lane = 0; lane < kLanes; ++lane) total += sums[lane];
        // NaN and infinite numbers of a row become NaN in all of its outputs.
        task.scales[g] = (largest > 1e-30f ? largest / steps : 0.0f) + sum(not_finite);
        task.sums[g] = total;
    }
}

}  // namespace
}  // namespace tidal
