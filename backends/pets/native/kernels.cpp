// The kernels, in terms of vectors of as many floats as the level has: compiled once for each level.
#include "kernels.hpp"

#ifndef TIDAL_LEVEL
#error "TIDAL_LEVEL names the level that is compiled: avx512, avx2 or plain"
#endif

namespace tidal {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr int kTileTokens = 8;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
constexpr int kTileTokens = 4;
#else
constexpr int kLanes = 4;
constexpr int kTileTokens = 4;
#endif
// Rows of a slice that have their sums in registers at the same time: enough to hide the latency of the additions.
constexpr int kRows = kLanes == 16 ? kSlice : 4;

typedef float Vector __attribute__((vector_size(kLanes * 4), may_alias));
typedef std::int32_t Integers __attribute__((vector_size(kLanes * 4), may_alias));
typedef float Unaligned __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

inline Vector load(const float* from) { return *reinterpret_cast<const Unaligned*>(from); }
inline void store(float* to, Vector vector) { *reinterpret_cast<Unaligned*>(to) = vector; }
inline Vector all(float value) { return Vector{} + value; }
inline Vector select(Integers where, Vector yes, Vector no) { return where ? yes : no; }
inline Vector absolute(Vector x) { return reinterpret_cast<Vector>(reinterpret_cast<Integers>(x) & 0x7fffffff); }

inline float sum(Vector x) {
    float total = 0;
    for (int lane = 0; lane < kLanes; ++lane) total += x[lane];
    return total;
}

// e to the power of x, to about one unit in the last place; 0 below the smallest normal number.
inline Vector exponential(Vector x) {
    x = select(x > 88.0f, all(88.0f), x);
    const Integers vanishes = x < -87.0f;
    x = select(vanishes, all(-87.0f), x);
    // Adding and subtracting 1.5 * 2^23 rounds to the nearest whole number.
    const Vector whole = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
    const Vector rest = (x - whole * 0.693145752f) - whole * 1.42860677e-6f;
    Vector power = all(1.0f / 5040);
    power = power * rest + 1.0f / 720;
    power = power * rest + 1.0f / 120;
    power = power * rest + 1.0f / 24;
    power = power * rest + 1.0f / 6;
    power = power * rest + 0.5f;
    power = power * rest + 1.0f;
    power = power * rest + 1.0f;
    const Integers exponent = (__builtin_convertvector(whole, Integers) + 127) << 23;
    return select(vanishes, Vector{}, power * reinterpret_cast<Vector>(exponent));
}

// The error function by Abramowitz and Stegun 7.1.26, to 1.5e-7.
inline Vector error_function(Vector x) {
    const Vector size = absolute(x);
    const Vector t = 1.0f / (size * 0.3275911f + 1.0f);
    Vector polynomial = all(1.061405429f);
    polynomial = polynomial * t - 1.453152027f;
    polynomial = polynomial * t + 1.421413741f;
    polynomial = polynomial * t - 0.284496736f;
    polynomial = polynomial * t + 0.254829592f;
    const Vector positive = 1.0f - polynomial * t * exponential(-size * size);
    return select(x < 0.0f, -positive, positive);
}

inline Vector hyperbolic_tangent(Vector x) { return 1.0f - 2.0f / (exponential(x + x) + 1.0f); }

template <Activation kind>
inline Vector activated(Vector x) {
    switch (kind) {
        case Activation::relu: return select(x > 0.0f, x, Vector{});
        case Activation::gelu: return 0.5f * x * (error_function(x * 0.70710678f) + 1.0f);
        case Activation::silu: return x / (exponential(-x) + 1.0f);
        case Activation::gelu_tanh:
            return 0.5f * x * (hyperbolic_tangent(0.79788456f * (x + 0.044715f * x * x * x)) + 1.0f);
        case Activation::tanh: return hyperbolic_tangent(x);
        default: return x;
    }
}

template <Activation kind>
void activate_as(float* x, int count) {
    int i = 0;
    for (; i + kLanes <= count; i += kLanes) store(x + i, activated<kind>(load(x + i)));
    if (i == count) return;
    float last[kLanes] = {};
    for (int j = i; j < count; ++j) last[j - i] = x[j];
    store(last, activated<kind>(load(last)));
    for (int j = i; j < count; ++j) x[j] = last[j - i];
}

void activate(Activation kind, float* x, int count) {
    switch (kind) {
        case Activation::relu: return activate_as<Activation::relu>(x, count);
        case Activation::gelu: return activate_as<Activation::gelu>(x, count);
        case Activation::silu: return activate_as<Activation::silu>(x, count);
        case Activation::gelu_tanh: return activate_as<Activation::gelu_tanh>(x, count);
        case Activation::tanh: return activate_as<Activation::tanh>(x, count);
        default: return;
    }
}

// ---- transposing

template <int step, bool upper>
inline Integers exchange() {
    Integers mask;
    for (int lane = 0; lane < kLanes; ++lane) {
        const bool high = lane & step;
        mask[lane] = upper ? (high ? kLanes + lane - step : lane) : (high ? kLanes + lane : lane + step);
    }
    return mask;
}

template <int step>
inline void transpose_by(Vector (&block)[kLanes]) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
        if (i & step) continue;
        const Vector low = block[i], high = block[i | step];
        block[i] = __builtin_shuffle(low, high, exchange<step, true>());
        block[i | step] = __builtin_shuffle(low, high, exchange<step, false>());
    }
}

inline void transpose(Vector (&block)[kLanes]) {
    transpose_by<1>(block);
    transpose_by<2>(block);
    if constexpr (kLanes >= 8) transpose_by<4 % kLanes>(block);
    if constexpr (kLanes >= 16) transpose_by<8 % kLanes>(block);
}

// [tokens, columns] to [columns][width], where `width` is a multiple of the lanes; absent tokens are zeros.
void to_columns(const float* x, int stride, int tokens, int columns, int width, float* target) {
    for (int first = 0; first < width; first += kLanes) {
        const int present = tokens - first < kLanes ? (tokens > first ? tokens - first : 0) : kLanes;
        const float* source = x + static_cast<std::size_t>(first) * stride;
        int column = 0;
        for (; column + kLanes <= columns; column += kLanes) {
            Vector block[kLanes];
#pragma GCC unroll 16
            for (int i = 0; i < kLanes; ++i) block[i] = i < present ? load(source + i * stride + column) : Vector{};
            transpose(block);
#pragma GCC unroll 16
            for (int i = 0; i < kLanes; ++i) store(target + (column + i) * width + first, block[i]);
        }
        for (; column < columns; ++column)
            for (int i = 0; i < kLanes; ++i)
                target[column * width + first + i] = i < present ? source[i * stride + column] : 0.0f;
    }
}

// Add [columns][width] to [tokens, columns].
void add_columns(const float* source, int width, int tokens, int columns, float* y, int stride) {
    for (int first = 0; first < tokens; first += kLanes) {
        const int present = tokens - first < kLanes ? tokens - first : kLanes;
        float* target = y + static_cast<std::size_t>(first) * stride;
        int column = 0;
        for (; column + kLanes <= columns; column += kLanes) {
            Vector block[kLanes];
#pragma GCC unroll 16
            for (int i = 0; i < kLanes; ++i) block[i] = load(source + (column + i) * width + first);
            transpose(block);
#pragma GCC unroll 16
            for (int i = 0; i < kLanes; ++i)
                if (i < present) {
                    float* row = target + i * stride + column;
                    store(row, load(row) + block[i]);
                }
        }
        for (; column < columns; ++column)
            for (int i = 0; i < present; ++i) target[i * stride + column] += source[column * width + first + i];
    }
}

// ---- sparse differences

// Entries times the columns of x: the sums of every output go to sums[output][vectors * kLanes].
template <int vectors>
void sparse_product(const Sparse& matrix, const float* x, float* sums) {
    constexpr int width = vectors * kLanes;
    for (std::uint32_t slice = 0; slice < matrix.slices; ++slice) {
        const std::size_t begin = matrix.starts[slice], end = matrix.starts[slice + 1];
        for (int half = 0; half < kSlice; half += kRows) {
            Vector total[kRows][vectors] = {};
            const float* values = matrix.values + begin * kSlice + half;
            const std::uint16_t* columns = matrix.columns + begin * kSlice + half;
            for (std::size_t entry = begin; entry < end; ++entry, values += kSlice, columns += kSlice) {
#pragma GCC unroll 8
                for (int row = 0; row < kRows; ++row) {
                    const float* column = x + static_cast<std::size_t>(columns[row]) * width;
#pragma GCC unroll 8
                    for (int v = 0; v < vectors; ++v) total[row][v] += values[row] * load(column + v * kLanes);
                }
            }
            const std::uint32_t* rows = matrix.rows + static_cast<std::size_t>(slice) * kSlice + half;
            for (int row = 0; row < kRows; ++row)
                for (int v = 0; v < vectors; ++v)
                    store(sums + static_cast<std::size_t>(rows[row]) * width + v * kLanes, total[row][v]);
        }
    }
}

// ---- dense products

// A tile of x [tokens, inner] times w [inner, vectors * kLanes], columns of w `column_step` apart from vector to vector.
template <int tokens, int vectors>
inline void tile(const float* x, int x_stride, int inner, const float* w, int w_stride, std::size_t column_step,
                 float* out, int out_stride) {
    Vector total[tokens][vectors] = {};
    for (int k = 0; k < inner; ++k) {
        Vector weight[vectors];
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) weight[v] = load(w + static_cast<std::size_t>(k) * w_stride + v * column_step);
#pragma GCC unroll 8
        for (int t = 0; t < tokens; ++t)
#pragma GCC unroll 8
            for (int v = 0; v < vectors; ++v) total[t][v] += x[t * x_stride + k] * weight[v];
    }
#pragma GCC unroll 8
    for (int t = 0; t < tokens; ++t)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) store(out + t * out_stride + v * kLanes, total[t][v]);
}

template <int vectors>
inline void tiles(int tokens, const float* x, int x_stride, int inner, const float* w, int w_stride,
                  std::size_t column_step, float* out, int out_stride) {
    int t = 0;
    for (; t + kTileTokens <= tokens; t += kTileTokens)
        tile<kTileTokens, vectors>(x + t * x_stride, x_stride, inner, w, w_stride, column_step, out + t * out_stride,
                                   out_stride);
    if constexpr (kTileTokens == 8)
        for (; t + 4 <= tokens; t += 4)
            tile<4, vectors>(x + t * x_stride, x_stride, inner, w, w_stride, column_step, out + t * out_stride,
                             out_stride);
    for (; t < tokens; ++t)
        tile<1, vectors>(x + t * x_stride, x_stride, inner, w, w_stride, column_step, out + t * out_stride, out_stride);
}

// x [tokens, inner] times w, `columns` of them, a multiple of the panel. Column c of w begins at
// w + c / kPanel * panel_step + c % kPanel and goes on every `w_stride` floats.
void product(int tokens, const float* x, int x_stride, int inner, const float* w, int w_stride, std::size_t panel_step,
             int columns, float* out, int out_stride) {
    constexpr int each = kPanel / kLanes;
    int column = 0;
    if constexpr (each == 1) {
        for (; column + 2 * kPanel <= columns; column += 2 * kPanel)
            tiles<2>(tokens, x, x_stride, inner, w + column / kPanel * panel_step, w_stride, panel_step, out + column,
                     out_stride);
        for (; column < columns; column += kPanel)
            tiles<1>(tokens, x, x_stride, inner, w + column / kPanel * panel_step, w_stride, panel_step, out + column,
                     out_stride);
    } else {
        for (; column < columns; column += 2 * kLanes)
            tiles<2>(tokens, x, x_stride, inner, w + column / kPanel * panel_step + column % kPanel, w_stride, kLanes,
                     out + column, out_stride);
    }
}

void product(int tokens, const float* x, int x_stride, const Dense& w, float* out) {
    const int columns = static_cast<int>(padded(w.outputs));
    product(tokens, x, x_stride, static_cast<int>(w.inputs), w.panels, kPanel,
            static_cast<std::size_t>(w.inputs) * kPanel, columns, out, columns);
}

// y += addend (+ bias), a row of `count`.
inline void add(float* y, const float* addend, const float* bias, int count) {
    int i = 0;
    if (bias) {
        for (; i + kLanes <= count; i += kLanes) store(y + i, load(y + i) + load(addend + i) + load(bias + i));
        for (; i < count; ++i) y[i] += addend[i] + bias[i];
    } else {
        for (; i + kLanes <= count; i += kLanes) store(y + i, load(y + i) + load(addend + i));
        for (; i < count; ++i) y[i] += addend[i];
    }
}

// ---- what the table offers

std::size_t linear_scratch(int inputs, int outputs, int widest_dense) {
    return static_cast<std::size_t>(kBlock) * (inputs + outputs + 1 + padded(outputs) + padded(widest_dense)) + 64;
}

void copy_with_bias(const LinearBlock& block, int first, int outputs, int stride, const float* bias) {
    for (int t = 0; t < block.tokens; ++t) {
        const float* from = block.shared + static_cast<std::size_t>(t) * stride + first;
        float* to = block.output + static_cast<std::size_t>(t) * stride + first;
        int i = 0;
        if (bias) {
            for (; i + kLanes <= outputs; i += kLanes) store(to + i, load(from + i) + load(bias + i));
            for (; i < outputs; ++i) to[i] = from[i] + bias[i];
        } else {
            for (; i + kLanes <= outputs; i += kLanes) store(to + i, load(from + i));
            for (; i < outputs; ++i) to[i] = from[i];
        }
    }
}

void linear(const LinearBlock& block, float* scratch) {
    int stride = 0, widest = 0;
    for (int layer = 0; layer < block.layers; ++layer) {
        stride += block.outputs[layer];
        widest = block.outputs[layer] > widest ? block.outputs[layer] : widest;
    }
    const int width = block.tokens <= 16 ? 16 : 32;
    float* const columns = scratch;                                              // [inputs][width]
    float* const sums = columns + static_cast<std::size_t>(block.inputs) * kBlock;  // [outputs + 1][width]
    float* const product_out = sums + static_cast<std::size_t>(widest + 1) * kBlock;
    float* const hidden = product_out + padded(widest) * kBlock;
    bool transposed = false;
    for (int layer = 0, first = 0; layer < block.layers; first += block.outputs[layer++]) {
        const int outputs = block.outputs[layer];
        const LinearSite* site = block.sites[layer];
        float* const y = block.output + first;
        copy_with_bias(block, first, outputs, stride, site ? site->bias : nullptr);
        if (!site) continue;
        if (site->sparse.slices) {
            if (!transposed) to_columns(block.input, block.inputs, block.tokens, block.inputs, width, columns);
            transposed = true;
            if (width == 16)
                sparse_product<16 / kLanes>(site->sparse, columns, sums);
            else
                sparse_product<32 / kLanes>(site->sparse, columns, sums);
            add_columns(sums, width, block.tokens, outputs, y, stride);
        }
        const int product_stride = static_cast<int>(padded(outputs));
        if (site->low_down.panels) {
            product(block.tokens, block.input, block.inputs, site->low_down, hidden);
            product(block.tokens, hidden, static_cast<int>(padded(site->low_down.outputs)), site->low_up, product_out);
            for (int t = 0; t < block.tokens; ++t)
                add(y + static_cast<std::size_t>(t) * stride, product_out + t * product_stride, nullptr, outputs);
        }
        if (site->bottleneck_down.panels) {
            const int inner = static_cast<int>(padded(site->bottleneck_down.outputs));
            product(block.tokens, y, stride, site->bottleneck_down, hidden);
            for (int t = 0; t < block.tokens; ++t) {
                float* row = hidden + t * inner;
                for (int i = 0; i < inner; i += kLanes) store(row + i, load(row + i) + load(site->bottleneck_down_bias + i));
            }
            activate(site->activation, hidden, block.tokens * inner);
            product(block.tokens, hidden, inner, site->bottleneck_up, product_out);
            for (int t = 0; t < block.tokens; ++t)
                add(y + static_cast<std::size_t>(t) * stride, product_out + t * product_stride,
                    site->bottleneck_up_bias, outputs);
        }
    }
    if (block.activation != Activation::none) activate(block.activation, block.output, block.tokens * stride);
}

void norm(const NormBlock& block) {
    for (int t = 0; t < block.tokens; ++t) {
        const std::size_t offset = static_cast<std::size_t>(t) * block.width;
        const float* source = block.source + offset;
        const float* residual = block.residual ? block.residual + offset : nullptr;
        float* out = block.output + offset;
        const int whole = block.width / kLanes * kLanes;
        Vector total{};
        float tail = 0;
        for (int i = 0; i < whole; i += kLanes) {
            const Vector x = residual ? load(source + i) + load(residual + i) : load(source + i);
            store(out + i, x);
            total += x;
        }
        for (int i = whole; i < block.width; ++i) tail += out[i] = source[i] + (residual ? residual[i] : 0.0f);
        const float mean = (sum(total) + tail) / block.width;
        Vector squares{};
        tail = 0;
        for (int i = 0; i < whole; i += kLanes) {
            const Vector apart = load(out + i) - mean;
            squares += apart * apart;
        }
        for (int i = whole; i < block.width; ++i) tail += (out[i] - mean) * (out[i] - mean);
        const float factor = 1.0f / __builtin_sqrtf((sum(squares) + tail) / block.width + block.epsilon);
        for (int i = 0; i < whole; i += kLanes)
            store(out + i, (load(out + i) - mean) * factor * load(block.weight + i) + load(block.bias + i));
        for (int i = whole; i < block.width; ++i) out[i] = (out[i] - mean) * factor * block.weight[i] + block.bias[i];
    }
}

std::size_t attention_scratch(int keys, int size) {
    return padded(keys) * (static_cast<std::size_t>(size) + kBlock) + keys * padded(size) + kBlock * padded(size) + 64;
}

void attention(const AttentionHead& head, float* scratch) {
    const int keys = static_cast<int>(padded(head.keys)), size = static_cast<int>(padded(head.size));
    float* const key_columns = scratch;                                              // [size][padded keys]
    float* const values = key_columns + static_cast<std::size_t>(keys) * head.size;  // [keys][padded size]
    float* const scores = values + static_cast<std::size_t>(head.keys) * size;       // [kBlock][padded keys]
    float* const out = scores + static_cast<std::size_t>(kBlock) * keys;             // [kBlock][padded size]
    to_columns(head.key, head.key_stride, head.keys, head.size, keys, key_columns);
    for (int k = 0; k < head.keys; ++k) {
        float* row = values + static_cast<std::size_t>(k) * size;
        for (int i = 0; i < head.size; ++i) row[i] = head.value[static_cast<std::size_t>(k) * head.key_stride + i];
        for (int i = head.size; i < size; ++i) row[i] = 0;
    }
    const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(head.size));
    for (int first = 0; first < head.queries; first += kBlock) {
        const int queries = head.queries - first < kBlock ? head.queries - first : kBlock;
        product(queries, head.query + static_cast<std::size_t>(first) * head.query_stride, head.query_stride, head.size,
                key_columns, keys, kPanel, keys, scores, keys);
        for (int q = 0; q < queries; ++q) {
            float* row = scores + static_cast<std::size_t>(q) * keys;
            float largest = row[0];
            for (int k = 1; k < head.keys; ++k) largest = row[k] > largest ? row[k] : largest;
            for (int k = head.keys; k < keys; ++k) row[k] = -__builtin_huge_valf();
            Vector total{};
            for (int k = 0; k < keys; k += kLanes) {
                const Vector weight = exponential((load(row + k) - largest) * scale);
                store(row + k, weight);
                total += weight;
            }
            const float factor = 1.0f / sum(total);
            for (int k = 0; k < keys; k += kLanes) store(row + k, load(row + k) * factor);
        }
        product(queries, scores, keys, head.keys, values, size, kPanel, size, out, size);
        for (int q = 0; q < queries; ++q)
            for (int i = 0; i < head.size; ++i)
                head.output[static_cast<std::size_t>(first + q) * head.output_stride + i] = out[q * size + i];
    }
}

}  // namespace

#define TIDAL_JOINED(name, level) name##level
#define TIDAL_TABLE(level) TIDAL_JOINED(kernels_, level)
#define TIDAL_TEXT(level) #level
#define TIDAL_NAME(level) TIDAL_TEXT(level)
extern const Kernels TIDAL_TABLE(TIDAL_LEVEL);
const Kernels TIDAL_TABLE(TIDAL_LEVEL) = {
    TIDAL_NAME(TIDAL_LEVEL), linear_scratch, attention_scratch, linear, norm, attention,
};

}  // namespace tidal
