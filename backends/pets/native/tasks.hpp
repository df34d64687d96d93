// Tasks packed for the kernels, and which task each row of a running batch has.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "kernels.hpp"

namespace tidal {

// Bytes that all arrays of all tasks take.
extern std::atomic<std::int64_t> bytes_in_use;

// Memory aligned for vectors, counted in `bytes_in_use`; zero at first.
template <typename T>
class Array {
public:
    explicit Array(std::size_t count);
    Array(Array&& other) noexcept : data_(other.data_), bytes_(other.bytes_) {
        other.data_ = nullptr;
        other.bytes_ = 0;
    }
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;
    Array& operator=(Array&&) = delete;
    ~Array() {
        bytes_in_use -= static_cast<std::int64_t>(bytes_);
        std::free(data_);
    }
    T* data() const { return data_; }
    T& operator[](std::size_t index) const { return data_[index]; }
    std::size_t bytes() const { return bytes_; }

private:
    T* data_;
    std::size_t bytes_;
};

// What one task adds, by the number of the layer. Complete before the first batch has it, never changed after.
class Task {
public:
    Task(std::size_t linear_layers, std::size_t norm_layers) : linear_(linear_layers), norm_(norm_layers) {}

    // Null where the task adds nothing.
    const LinearSite* linear(std::size_t layer) const {
        return layer < linear_.size() && linear_[layer].used ? &linear_[layer].site : nullptr;
    }
    const NormSite* norm(std::size_t layer) const {
        return layer < norm_.size() && norm_[layer].weight ? &norm_[layer] : nullptr;
    }
    std::size_t bytes() const;
    // Widest of its ranks and bottlenecks.
    int widest_dense() const { return widest_dense_; }

    void set_bias(std::size_t layer, std::uint32_t outputs, const float* bias);
    void set_sparse(std::size_t layer, std::uint32_t outputs, const std::uint32_t* starts, const std::uint16_t* columns,
                    const float* values);
    void set_low_rank(std::size_t layer, std::uint32_t outputs, std::uint32_t inputs, std::uint32_t rank,
                      const float* down, const float* up, float scale);
    void set_bottleneck(std::size_t layer, std::uint32_t outputs, std::uint32_t width, const float* down,
                        const float* down_bias, const float* up, const float* up_bias, Activation activation,
                        bool after_norm);
    void set_norm(std::size_t layer, std::uint32_t width, const float* weight, const float* bias);

private:
    struct Linear {
        bool used = false;
        LinearSite site;
    };

    float* floats(std::size_t count);
    float* copied(const float* from, std::size_t count, std::size_t room);
    Dense packed(const float* matrix, std::uint32_t outputs, std::uint32_t inputs, float scale);
    LinearSite& site(std::size_t layer);

    std::vector<Linear> linear_;
    std::vector<NormSite> norm_;
    std::vector<Array<float>> floats_;
    std::vector<Array<std::uint32_t>> indices_;
    std::vector<Array<std::uint16_t>> columns_;
    int widest_dense_ = 0;
};

// Some tokens of one row, among the tokens of a tensor.
struct Piece {
    std::size_t row, first, tokens;
};

// Where the tokens of each row are in a tensor, and the pieces of them that are computed in parallel.
struct Layout {
    Layout() = default;
    // Rows of some tokens each, one after another.
    explicit Layout(const std::vector<std::int32_t>& lengths);
    std::size_t tokens() const { return firsts.back(); }

    std::vector<std::size_t> firsts = {0};  // [rows + 1] first token of each row, and the number of all
    std::vector<Piece> pieces;
};

// The rows of a batch that runs: it keeps its tasks alive.
struct Batch {
    std::vector<std::shared_ptr<const Task>> tasks;  // [rows], null for the base alone
    Layout all;                                      // all tokens of all rows
    Layout one;                                      // one token of each row
    int widest_dense = 0;
};

// Batches that run are known by number, since a graph's input cannot carry a pointer: OpenVINO's CPU plugin narrows
// 64-bit integers to 32 bits.
std::int32_t begin_batch(std::unique_ptr<Batch> batch);
void end_batch(std::int32_t number);
// Null for 0 and for a number that no running batch has.
const Batch* running_batch(std::int32_t number);

}  // namespace tidal
