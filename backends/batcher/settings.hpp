// What an operator sets in config.pbtxt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace tidal::batcher {

// A config that cannot be accepted; the message names the parameter, its value and what is accepted.
struct BadConfig : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

// Where a request's length stands.
struct LengthInput {
    std::string name;
    std::size_t dimension = 1;  // of the shape with the batch dimension; not for texts, whose length is in bytes
};

struct Settings {
    std::optional<std::int64_t> tokens;      // longest length times rows of a batch at most
    std::optional<std::int64_t> length_bin;  // lengths 1 to this share a bin, and so on
    std::vector<std::string> keys;           // request parameters that are equal within a batch
    std::optional<double> deadline_ms;       // difference of deadlines at most (η of OTAS)
    std::optional<double> utility;           // difference of utilities at most (μ of OTAS)
    std::optional<double> wait_ms;           // a batch takes no more once its oldest request waited so long (δ of OTAS)
    LengthInput length;                      // only with `tokens` or `length_bin`
    // Whether Triton sends batches as they were formed. Otherwise it adds requests to those that wait for an instance.
    bool final = false;

    bool needs_length() const { return tokens || length_bin; }
    bool needs_parameters() const { return !keys.empty() || deadline_ms || utility; }
};

// Throws BadConfig, or JsonError where the text is no JSON.
Settings read_settings(std::string_view config);

// What batches keep to, in words; empty where nothing was set.
std::string describe(const Settings& settings);

}  // namespace tidal::batcher
