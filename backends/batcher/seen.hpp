// First seen times of requests: Triton offers unsent requests repeatedly, always in the same order.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace tidal::batcher {

class Seen {
  public:
    // Triton starts again at its first waiting request.
    void begin() { next_ = 0; }

    // The requests were sent: other requests may reuse their addresses.
    void forget() { known_.clear(), next_ = 0; }

    // Return when the request that Triton offers now was first seen.
    double at(const void* request, double now) {
        if (next_ < known_.size() && known_[next_].first != request) known_.resize(next_);
        if (next_ == known_.size()) {
            if (next_ == most_) return now;
            known_.emplace_back(request, now);
        }
        return known_[next_++].second;
    }

  private:
    static constexpr std::size_t most_ = 1 << 16;

    std::vector<std::pair<const void*, double>> known_;
    std::size_t next_ = 0;
};

}  // namespace tidal::batcher
