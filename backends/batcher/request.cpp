#include "request.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

namespace tidal::batcher {
namespace {

// Number of bytes of a parameter's value that are compared.
constexpr std::size_t longest_value = 1024;

bool succeeded(TRITONSERVER_Error* error) {
    if (error) TRITONSERVER_ErrorDelete(error);
    return !error;
}

struct Parameter {
    TRITONSERVER_ParameterType type;
    const void* value;

    // As text, so that 1, 1.0 and "1" are equal, as for a model.
    std::string text() const {
        char written[32];
        switch (type) {
            case TRITONSERVER_PARAMETER_STRING: {
                const auto* text = static_cast<const char*>(value);
                return std::string(text, strnlen(text, longest_value));
            }
            case TRITONSERVER_PARAMETER_INT:
                return std::to_string(*static_cast<const std::int64_t*>(value));
            case TRITONSERVER_PARAMETER_BOOL:
                return *static_cast<const bool*>(value) ? "true" : "false";
            case TRITONSERVER_PARAMETER_DOUBLE:
                std::snprintf(written, sizeof written, "%.17g", *static_cast<const double*>(value));
                return written;
            default:
                return "";
        }
    }

    std::optional<double> number() const {
        if (type == TRITONSERVER_PARAMETER_INT) return static_cast<double>(*static_cast<const std::int64_t*>(value));
        double read = 0;
        if (type == TRITONSERVER_PARAMETER_DOUBLE) {
            read = *static_cast<const double*>(value);
        } else if (type == TRITONSERVER_PARAMETER_STRING) {
            const auto* text = static_cast<const char*>(value);
            char* end = nullptr;
            read = std::strtod(text, &end);
            if (end == text || *end) return std::nullopt;
        } else {
            return std::nullopt;
        }
        return std::isfinite(read) ? std::optional(read) : std::nullopt;
    }
};

void read_length(TRITONBACKEND_Request* from, const LengthInput& wanted, Request& to) {
    TRITONBACKEND_Input* input = nullptr;
    TRITONSERVER_DataType type = TRITONSERVER_TYPE_INVALID;
    const std::int64_t* shape = nullptr;
    std::uint32_t dimensions = 0;
    std::uint64_t bytes = 0;
    if (!succeeded(TRITONBACKEND_RequestInput(from, wanted.name.c_str(), &input)) || !input) return;
    if (!succeeded(TRITONBACKEND_InputProperties(input, nullptr, &type, &shape, &dimensions, &bytes, nullptr))) return;
    const auto size = [&](std::size_t at) { return static_cast<double>(std::max<std::int64_t>(shape[at], 0)); };
    if (shape && dimensions > 0) to.rows = std::max(size(0), 1.0);
    if (type == TRITONSERVER_TYPE_BYTES)  // four bytes with its size precede each text
        to.length = std::max(std::ceil(static_cast<double>(bytes) / to.rows) - 4, 0.0);
    else if (shape && wanted.dimension < dimensions)
        to.length = size(wanted.dimension);
}

void read_parameters(TRITONBACKEND_Request* from, const Settings& settings, Request& to) {
    std::vector<std::optional<std::string>> values(settings.keys.size());
    std::uint32_t count = 0;
    if (!succeeded(TRITONBACKEND_RequestParameterCount(from, &count))) count = 0;
    for (std::uint32_t index = 0; index < count; ++index) {
        const char* name = nullptr;
        Parameter parameter{TRITONSERVER_PARAMETER_STRING, nullptr};
        const bool read =
            succeeded(TRITONBACKEND_RequestParameter(from, index, &name, &parameter.type, &parameter.value));
        if (!read || !name || !parameter.value) continue;
        for (std::size_t key = 0; key < settings.keys.size(); ++key)
            if (settings.keys[key] == name) values[key] = parameter.text();
        if (settings.deadline_ms && std::strcmp(name, "latency_ms") == 0)
            to.latency_ms = parameter.number().value_or(to.latency_ms);
        if (settings.utility && std::strcmp(name, "utility") == 0)
            to.utility = parameter.number().value_or(to.utility);
    }
    // Sizes precede the values, so that different lists of values have different keys.
    for (const auto& value : values)
        to.key += value ? std::to_string(value->size()) + ":" + *value : std::string("-");
}

}  // namespace

Request read_request(TRITONBACKEND_Request* from, const Settings& settings) {
    Request read;
    if (settings.needs_length()) read_length(from, settings.length, read);
    if (settings.needs_parameters()) read_parameters(from, settings, read);
    return read;
}

}  // namespace tidal::batcher
