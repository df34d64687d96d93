// The batcher's parameters in config.pbtxt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace tidal::batcher {

// A config that cannot be accepted; the message names the parameter, its value and the accepted values.
struct BadConfig : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

// The input whose size is a request's length.
struct LengthInput {
    std::string name;
    std::size_t dimension = 1;  // index into the shape, batch dimension included; unused for texts (length in bytes)
};

struct Settings {
    std::optional<std::int64_t> tokens;      // upper limit of longest length × rows of a batch
    std::optional<std::int64_t> length_bin;  // width of the length bins: lengths 1 to this share the first bin
    std::vector<std::string> keys;           // request parameters whose values must be equal within a batch
    std::optional<double> deadline_ms;       // largest difference of deadlines within a batch (η of OTAS)
    std::optional<double> utility;           // largest difference of utilities within a batch (μ of OTAS)
    std::optional<double> wait_ms;           // time after its oldest request when a batch closes (δ of OTAS)
    LengthInput length;                      // set only with `tokens` or `length_bin`
    // Whether Triton sends batches as they were formed. Otherwise it adds requests to batches that wait for an instance.
    bool final = false;

    bool needs_length() const { return tokens || length_bin; }
    bool needs_parameters() const { return !keys.empty() || deadline_ms || utility; }
};

// Parse a model's config, which is JSON. Throws BadConfig for a config that cannot be accepted, and std::runtime_error
// for text that is not JSON.
Settings read_settings(std::string_view config);

// One line about the limits that batches observe; empty if no parameter is set.
std::string describe(const Settings& settings);

}  // namespace tidal::batcher
