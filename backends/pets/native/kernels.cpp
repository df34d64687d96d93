// The kernels, in terms of vectors of as many floats as the level has: compiled once for each level.
#include "products.hpp"

namespace tidal {
namespace {

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

// Add up·σ(down·source) to y. `hidden` has space for padded(bottleneck), `product_out` for padded(outputs) a token.
void add_bottleneck(const LinearSite& site, int tokens, const float* source, float* y, int stride, int outputs,
                    float* hidden, float* product_out) {
    const int inner = static_cast<int>(padded(site.bottleneck_down.outputs));
    const int product_stride = static_cast<int>(padded(outputs));
    product(tokens, source, stride, site.bottleneck_down, hidden);
    for (int t = 0; t < tokens; ++t) {
        float* row = hidden + t * inner;
        for (int i = 0; i < inner; i += kLanes) store(row + i, load(row + i) + load(site.bottleneck_down_bias + i));
    }
    activate(site.activation, hidden, tokens * inner);
    product(tokens, hidden, inner, site.bottleneck_up, product_out);
    for (int t = 0; t < tokens; ++t)
        add(y + static_cast<std::size_t>(t) * stride, product_out + t * product_stride, site.bottleneck_up_bias, outputs);
}

void bottleneck(const BottleneckBlock& block, float* scratch) {
    float* const hidden = scratch + padded(block.outputs) * kBlock;
    add_bottleneck(*block.site, block.tokens, block.source, block.output, block.outputs, block.outputs, hidden, scratch);
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
        if (site->bottleneck_down.panels && !site->after_norm)
            add_bottleneck(*site, block.tokens, y, y, stride, outputs, hidden, product_out);
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
            if (head.received) add(head.received, row, nullptr, head.keys);
        }
        product(queries, scores, keys, head.keys, values, size, kPanel, size, out, size);
        for (int q = 0; q < queries; ++q)
            for (int i = 0; i < head.size; ++i)
                head.output[static_cast<std::size_t>(first + q) * head.output_stride + i] = out[q * size + i];
    }
}

}  // namespace

extern const Kernels TIDAL_TABLE(TIDAL_LEVEL);
const Kernels TIDAL_TABLE(TIDAL_LEVEL) = {
    TIDAL_NAME(TIDAL_LEVEL), linear_scratch, attention_scratch, linear, bottleneck, norm, attention,
};

}  // namespace tidal
