// What a batch goes by of one request, read through Triton's API.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "settings.hpp"
#include "triton_api.h"

namespace tidal::batcher {

struct Request {
    double rows = 1;
    double length = 0;   // 0 where it cannot be told
    std::string key;     // values of all parameters that a batch shares
    double latency_ms = std::numeric_limits<double>::infinity();  // deadline after arrival; infinite without one
    double utility = 1;
    double seen_ms = 0;  // when the batcher saw it first, on a clock of its own
};

// Reads only what the settings need. What cannot be read counts as not sent: the model refuses it, not the batcher.
Request read_request(TRITONBACKEND_Request* request, const Settings& settings);

}  // namespace tidal::batcher
