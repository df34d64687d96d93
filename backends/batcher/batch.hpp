// Which requests go together.
#pragma once

#include <string>

#include "request.hpp"
#include "settings.hpp"

namespace tidal::batcher {

// A batch that is being formed, of requests in their order of arrival.
class Batch {
  public:
    explicit Batch(const Settings& settings) : settings_(settings) {}

    // Forget what was taken.
    void clear() { empty_ = true; }

    // Take the request if it goes with those before it; the first always does, however large it is: Triton would ask
    // for it for ever.
    bool take(const Request& request);

  private:
    bool fits(const Request& request) const;
    double bin(double length) const;

    const Settings& settings_;
    bool empty_ = true;
    double rows_ = 0, longest_ = 0, bin_ = 0;
    double utility_ = 0;             // of the first (u_b)
    double deadline_ms_ = 0;         // the earliest (d_b)
    double seen_ms_ = 0;             // when the first was seen (s_b)
    std::string key_;
};

}  // namespace tidal::batcher
