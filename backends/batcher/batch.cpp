#include "batch.hpp"

#include <algorithm>
#include <cmath>

namespace tidal::batcher {

bool Batch::take(const Request& request) {
    if (!empty_ && !fits(request)) return false;
    if (empty_) {
        rows_ = longest_ = bin_ = 0;
        utility_ = request.utility;
        deadline_ms_ = request.seen_ms + request.latency_ms;
        seen_ms_ = request.seen_ms;
        key_ = request.key;
        empty_ = false;
    }
    rows_ += request.rows;
    longest_ = std::max(longest_, request.length);
    deadline_ms_ = std::min(deadline_ms_, request.seen_ms + request.latency_ms);
    if (bin_ == 0) bin_ = bin(request.length);
    return true;
}

bool Batch::fits(const Request& request) const {
    if (settings_.tokens &&
        std::max(longest_, request.length) * (rows_ + request.rows) > static_cast<double>(*settings_.tokens))
        return false;
    if (const double its = bin(request.length); bin_ != 0 && its != 0 && its != bin_) return false;
    if (request.key != key_) return false;
    if (settings_.deadline_ms) {
        const double deadline_ms = request.seen_ms + request.latency_ms;
        const bool has_one = std::isfinite(deadline_ms);
        if (has_one != std::isfinite(deadline_ms_)) return false;
        if (has_one && std::abs(deadline_ms - deadline_ms_) > *settings_.deadline_ms) return false;
    }
    if (settings_.utility && std::abs(request.utility - utility_) > *settings_.utility) return false;
    return !settings_.wait_ms || request.seen_ms - seen_ms_ <= *settings_.wait_ms;
}

// Bins are numbered from 1; 0: no bins, or no length.
double Batch::bin(double length) const {
    return settings_.length_bin ? std::ceil(length / static_cast<double>(*settings_.length_bin)) : 0;
}

}  // namespace tidal::batcher
