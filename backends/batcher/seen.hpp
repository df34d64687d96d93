// When requests were seen first: Triton asks about those that it has not sent yet again and again, always in one order.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace tidal::batcher {

class Seen {
  public:
    // Triton begins at its first waiting request again.
    void begin() { next_ = 0; }

    // Those requests are gone: another one may lie where they lay.
    void forget() { known_.clear(), next_ = 0; }

    // When the request that Triton asks about now was seen first.
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
