#include "tasks.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>

namespace tidal {

std::atomic<std::int64_t> bytes_in_use{0};

template <typename T>
Array<T>::Array(std::size_t count) : data_(nullptr), bytes_((count * sizeof(T) + 63) / 64 * 64) {
    if (bytes_ == 0) return;
    data_ = static_cast<T*>(std::aligned_alloc(64, bytes_));
    if (!data_) throw std::bad_alloc();
    std::memset(static_cast<void*>(data_), 0, bytes_);
    bytes_in_use += static_cast<std::int64_t>(bytes_);
}

std::size_t Task::bytes() const {
    std::size_t total = 0;
    for (const auto& array : floats_) total += array.bytes();
    for (const auto& array : indices_) total += array.bytes();
    for (const auto& array : columns_) total += array.bytes();
    return total;
}

float* Task::floats(std::size_t count) {
    floats_.emplace_back(count);
    return floats_.back().data();
}

float* Task::copied(const float* from, std::size_t count, std::size_t room) {
    float* to = floats(room);
    std::copy_n(from, count, to);
    return to;
}

LinearSite& Task::site(std::size_t layer) {
    linear_.at(layer).used = true;
    return linear_[layer].site;
}

Dense Task::packed(const float* matrix, std::uint32_t outputs, std::uint32_t inputs, float scale) {
    float* panels = floats(padded(outputs) * inputs);
    for (std::uint32_t o = 0; o < outputs; ++o)
        for (std::uint32_t i = 0; i < inputs; ++i)
            panels[(static_cast<std::size_t>(o / kPanel) * inputs + i) * kPanel + o % kPanel] =
                scale * matrix[static_cast<std::size_t>(o) * inputs + i];
    return {outputs, inputs, panels};
}

void Task::set_bias(std::size_t layer, std::uint32_t outputs, const float* bias) {
    site(layer).bias = copied(bias, outputs, outputs);
}

void Task::set_sparse(std::size_t layer, std::uint32_t outputs, const std::uint32_t* starts,
                      const std::uint16_t* columns, const float* values) {
    std::vector<std::uint32_t> order(outputs);
    std::iota(order.begin(), order.end(), 0u);
    const auto length = [&](std::uint32_t row) { return starts[row + 1] - starts[row]; };
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return length(a) > length(b); });
    const std::uint32_t slices = (outputs + kSlice - 1) / kSlice;

    indices_.emplace_back(slices + 1);
    Array<std::uint32_t>& slice_starts = indices_.back();
    for (std::uint32_t slice = 0; slice < slices; ++slice)
        slice_starts[slice + 1] = slice_starts[slice] + length(order[slice * kSlice]);
    std::uint32_t* const packed_starts = slice_starts.data();
    indices_.emplace_back(static_cast<std::size_t>(slices) * kSlice);
    std::uint32_t* const rows = indices_.back().data();
    const std::size_t entries = static_cast<std::size_t>(packed_starts[slices]) * kSlice;
    columns_.emplace_back(entries);
    std::uint16_t* const packed_columns = columns_.back().data();
    float* const packed_values = floats(entries);
    for (std::uint32_t place = 0; place < slices * kSlice; ++place) {
        rows[place] = place < outputs ? order[place] : outputs;
        if (place >= outputs) continue;
        std::size_t to = static_cast<std::size_t>(packed_starts[place / kSlice]) * kSlice + place % kSlice;
        for (std::uint32_t from = starts[order[place]]; from < starts[order[place] + 1]; ++from, to += kSlice) {
            packed_columns[to] = columns[from];
            packed_values[to] = values[from];
        }
    }
    site(layer).sparse = {slices, packed_starts, rows, packed_columns, packed_values};
}

void Task::set_low_rank(std::size_t layer, std::uint32_t outputs, std::uint32_t inputs, std::uint32_t rank,
                        const float* down, const float* up, float scale) {
    // The hidden vector is padded to whole panels; the zeros are left out of the second product.
    LinearSite& target = site(layer);
    target.low_down = packed(down, rank, inputs, 1.0f);
    target.low_up = packed(up, outputs, rank, scale);
    widest_dense_ = std::max(widest_dense_, static_cast<int>(rank));
}

void Task::set_bottleneck(std::size_t layer, std::uint32_t outputs, std::uint32_t width, const float* down,
                          const float* down_bias, const float* up, const float* up_bias, Activation activation,
                          bool after_norm) {
    LinearSite& target = site(layer);
    target.bottleneck_down = packed(down, width, outputs, 1.0f);
    target.bottleneck_down_bias = copied(down_bias, width, padded(width));
    target.bottleneck_up = packed(up, outputs, width, 1.0f);
    target.bottleneck_up_bias = copied(up_bias, outputs, outputs);
    target.activation = activation;
    target.after_norm = after_norm;
    widest_dense_ = std::max(widest_dense_, static_cast<int>(width));
}

void Task::set_norm(std::size_t layer, std::uint32_t width, const float* weight, const float* bias) {
    NormSite& target = norm_.at(layer);
    target.weight = copied(weight, width, width);
    target.bias = copied(bias, width, width);
}

Layout::Layout(const std::vector<std::int32_t>& lengths) {
    for (std::size_t row = 0; row < lengths.size(); ++row) {
        const std::size_t first = firsts.back(), end = first + static_cast<std::size_t>(lengths[row]);
        for (std::size_t token = first; token < end; token += kBlock)
            pieces.push_back({row, token, std::min<std::size_t>(kBlock, end - token)});
        firsts.push_back(end);
    }
}

namespace {

constexpr std::int32_t most_batches = 1024;
std::atomic<const Batch*> batches[most_batches];

}  // namespace

std::int32_t begin_batch(std::unique_ptr<Batch> batch) {
    for (const auto& task : batch->tasks)
        if (task) batch->widest_dense = std::max(batch->widest_dense, task->widest_dense());
    for (std::int32_t place = 0; place < most_batches; ++place) {
        const Batch* free = nullptr;
        if (batches[place].compare_exchange_strong(free, batch.get())) {
            batch.release();
            return place + 1;
        }
    }
    throw std::runtime_error("too many batches run at once");
}

void end_batch(std::int32_t number) {
    if (number >= 1 && number <= most_batches) delete batches[number - 1].exchange(nullptr);
}

const Batch* running_batch(std::int32_t number) {
    return number >= 1 && number <= most_batches ? batches[number - 1].load(std::memory_order_acquire) : nullptr;
}

template class Array<float>;
template class Array<std::uint32_t>;
template class Array<std::uint16_t>;

}  // namespace tidal
