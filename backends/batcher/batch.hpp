// The rules for requests of one batch.
#pragma once

#include <string>

#include "request.hpp"
#include "settings.hpp"

namespace tidal::batcher {

// A batch that is being formed from requests in their order of arrival.
class Batch {
  public:
    explicit Batch(const Settings& settings) : settings_(settings) {}

    // Start an empty batch.
    void clear() { empty_ = true; }

    // Add the request if it fits the batch; return whether it does. The first one always fits: Triton would retry it
    // forever.
    bool take(const Request& request);

  private:
    bool fits(const Request& request) const;
    double bin(double length) const;

    const Settings& settings_;
    bool empty_ = true;
    double rows_ = 0, longest_ = 0, bin_ = 0;
    double utility_ = 0;             // of the first request (u_b)
    double deadline_ms_ = 0;         // earliest deadline (d_b)
    double seen_ms_ = 0;             // first seen time of the batch (s_b)
    std::string key_;
};

}  // namespace tidal::batcher
