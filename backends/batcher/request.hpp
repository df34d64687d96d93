// The properties of a request that batching depends on, read through Triton's API.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "settings.hpp"
#include "triton_api.h"

namespace tidal::batcher {

struct Request {
    double rows = 1;
    double length = 0;   // 0: unknown
    std::string key;     // values of the parameters that must be equal within a batch
    double latency_ms = std::numeric_limits<double>::infinity();  // deadline after arrival; infinite: none
    double utility = 1;
    double seen_ms = 0;  // time when the batcher first saw it, on the batcher's clock
};

// Reads only what the settings require. Invalid values count as absent: the model refuses them, not the batcher.
Request read_request(TRITONBACKEND_Request* request, const Settings& settings);

}  // namespace tidal::batcher
