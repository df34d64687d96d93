#include "workers.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tidal {
namespace {

using Clock = std::chrono::steady_clock;
// Time that a helper spins for the next task of a pass, and a caller for the last part, before it sleeps.
constexpr auto kLookOut = std::chrono::microseconds(100);

inline void pause() {
#if defined(__x86_64__)
    _mm_pause();
#else
    std::this_thread::yield();
#endif
}

template <class Ready>
bool look_out(const Ready& ready) {
    const auto until = Clock::now() + kLookOut;
    do {
        for (int turn = 0; turn < 64; ++turn) {
            if (ready()) return true;
            pause();
        }
    } while (Clock::now() < until);
    return ready();
}

// Index of the next part, number of parts, and number of helpers that may still join, in one atomic word: a thread that
// takes a part has a consistent view of all three, and the task does not change until that part is done.
constexpr int kPartBits = 21, kHelperBits = 16;
constexpr std::uint64_t kPartMask = (std::uint64_t{1} << kPartBits) - 1;
constexpr std::uint64_t kHelperMask = (std::uint64_t{1} << kHelperBits) - 1;
static_assert(kMostParts <= static_cast<int>(kPartMask), "as many parts as there is room for");

constexpr std::uint64_t published(std::uint64_t helpers, std::uint64_t parts) {
    return helpers << (2 * kPartBits) | parts << kPartBits;
}
constexpr std::uint64_t next_of(std::uint64_t state) { return state & kPartMask; }
constexpr std::uint64_t parts_of(std::uint64_t state) { return state >> kPartBits & kPartMask; }
constexpr std::uint64_t helpers_of(std::uint64_t state) { return state >> (2 * kPartBits) & kHelperMask; }

class Workers {
  public:
    void share_out(int threads, int parts, RunPart run, const void* work) {
        const std::unique_lock<std::mutex> owner(owner_, std::try_to_lock);
        if (!owner) {
            for (int part = 0; part < parts; ++part) run(work, part);
            return;
        }
        const int helpers = std::min(threads - 1, static_cast<int>(kHelperMask));
        for (; started_ < helpers; ++started_) std::thread(&Workers::help, this, started_).detach();
        run_ = run;
        work_ = work;
        done_.store(0, std::memory_order_relaxed);
        state_.store(published(helpers, parts));
        if (asleep_.load() > 0) {
            { const std::lock_guard<std::mutex> lock(sleep_); }
            woken_.notify_all();
        }
        while (take_part(-1)) {
        }
        const auto ended = [&] { return done_.load() == parts; };
        if (look_out(ended)) return;
        std::unique_lock<std::mutex> lock(end_);
        waits_.store(true);
        ended_.wait(lock, ended);
        waits_.store(false);
    }

  private:
    // Main loop of a helper. It never ends: sleeping threads do not delay the exit of the process.
    void help(int number) {
        while (true) {
            const auto ready = [&] { return is_ready(number); };
            if (!look_out(ready)) {
                std::unique_lock<std::mutex> lock(sleep_);
                asleep_.fetch_add(1);
                woken_.wait(lock, ready);
                asleep_.fetch_sub(1);
            }
            while (take_part(number)) {
            }
        }
    }

    bool is_ready(int number) const {
        const std::uint64_t state = state_.load();
        return next_of(state) < parts_of(state) && number < static_cast<int>(helpers_of(state));
    }

    // Take and run the next part; false if there is none for this thread.
    bool take_part(int number) {
        std::uint64_t state = state_.load();
        do {
            if (next_of(state) >= parts_of(state) || number >= static_cast<int>(helpers_of(state))) return false;
        } while (!state_.compare_exchange_weak(state, state + 1));
        const int parts = static_cast<int>(parts_of(state));
        run_(work_, static_cast<int>(next_of(state)));
        if (done_.fetch_add(1) + 1 == parts && waits_.load()) {
            { const std::lock_guard<std::mutex> lock(end_); }
            ended_.notify_one();
        }
        return true;
    }

    std::mutex owner_;  // held by the caller whose task this is
    int started_ = 0;
    RunPart run_ = nullptr;
    const void* work_ = nullptr;
    alignas(64) std::atomic<std::uint64_t> state_{0};
    alignas(64) std::atomic<int> done_{0};
    alignas(64) std::atomic<int> asleep_{0};
    std::atomic<bool> waits_{false};
    std::mutex sleep_, end_;
    std::condition_variable woken_, ended_;
};

}  // namespace

void share_out(int threads, int parts, RunPart run, const void* work) {
    static Workers& workers = *new Workers;  // never destroyed: helpers run until the process exits
    workers.share_out(threads, parts, run, work);
}

}  // namespace tidal
