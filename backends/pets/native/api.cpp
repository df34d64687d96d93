// The C interface that Python calls. Functions that can fail return false or 0 and leave the reason in `tidal_error`.
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "tasks.hpp"

#define TIDAL_API extern "C" __attribute__((visibility("default")))

namespace {

using tidal::Task;
using Handle = std::shared_ptr<Task>;

thread_local std::string last_error;

template <typename Action>
bool attempt(Action action) {
    try {
        action();
        return true;
    } catch (const std::exception& error) {
        last_error = error.what();
    } catch (...) {
        last_error = "unknown";
    }
    return false;
}

Task& task_of(void* handle) { return **static_cast<Handle*>(handle); }

}  // namespace

TIDAL_API const char* tidal_error() { return last_error.c_str(); }

TIDAL_API void* tidal_task_create(std::uint32_t linear_layers, std::uint32_t norm_layers) {
    void* created = nullptr;
    attempt([&] { created = new Handle(std::make_shared<Task>(linear_layers, norm_layers)); });
    return created;
}

// Batches that still run keep the task until they end.
TIDAL_API void tidal_task_release(void* task) { delete static_cast<Handle*>(task); }

TIDAL_API std::int64_t tidal_task_bytes(void* task) { return static_cast<std::int64_t>(task_of(task).bytes()); }

TIDAL_API bool tidal_task_bias(void* task, std::uint32_t layer, std::uint32_t outputs, const float* bias) {
    return attempt([&] { task_of(task).set_bias(layer, outputs, bias); });
}

TIDAL_API bool tidal_task_sparse(void* task, std::uint32_t layer, std::uint32_t outputs, const std::uint32_t* starts,
                                 const std::uint16_t* columns, const float* values) {
    return attempt([&] { task_of(task).set_sparse(layer, outputs, starts, columns, values); });
}

TIDAL_API bool tidal_task_low_rank(void* task, std::uint32_t layer, std::uint32_t outputs, std::uint32_t inputs,
                                   std::uint32_t rank, const float* down, const float* up, float scale) {
    return attempt([&] { task_of(task).set_low_rank(layer, outputs, inputs, rank, down, up, scale); });
}

TIDAL_API bool tidal_task_bottleneck(void* task, std::uint32_t layer, std::uint32_t outputs, std::uint32_t width,
                                     const float* down, const float* down_bias, const float* up, const float* up_bias,
                                     std::int32_t activation, bool after_norm) {
    return attempt([&] {
        task_of(task).set_bottleneck(layer, outputs, width, down, down_bias, up, up_bias,
                                     static_cast<tidal::Activation>(activation), after_norm);
    });
}

TIDAL_API bool tidal_task_norm(void* task, std::uint32_t layer, std::uint32_t width, const float* weight,
                               const float* bias) {
    return attempt([&] { task_of(task).set_norm(layer, width, weight, bias); });
}

// The batch's number, or 0. `tasks` holds a handle or null for every row, `lengths` its number of tokens.
TIDAL_API std::int32_t tidal_batch_begin(std::uint32_t rows, void* const* tasks, const std::int32_t* lengths) {
    std::int32_t number = 0;
    attempt([&] {
        auto batch = std::make_unique<tidal::Batch>();
        batch->all = tidal::Layout(std::vector<std::int32_t>(lengths, lengths + rows));
        batch->one = tidal::Layout(std::vector<std::int32_t>(rows, 1));
        for (std::uint32_t row = 0; row < rows; ++row)
            batch->tasks.push_back(tasks[row] ? *static_cast<Handle*>(tasks[row]) : nullptr);
        number = tidal::begin_batch(std::move(batch));
    });
    return number;
}

TIDAL_API void tidal_batch_end(std::int32_t number) { tidal::end_batch(number); }

TIDAL_API std::int64_t tidal_bytes_in_use() { return tidal::bytes_in_use; }

TIDAL_API const char* tidal_kernels() { return tidal::kernels().name; }

TIDAL_API bool tidal_choose_kernels(const char* name) { return tidal::choose_kernels(name); }
