// The five functions that Triton's dynamic batcher calls, from one thread per model.
//
// Properties of Triton 2.51, and their consequences:
// - It retries a request forever that an empty batch refuses. So the first request of a batch is never refused.
// - It drops states of batches without finalizing them. So a model has one state, and batches allocate none.
// - When a model is unloaded, the batcher is finalized and this library closed before the calling thread has ended.
//   So finalized batchers are kept for a while, and the library is linked to stay loaded (-z nodelete).
// - A request that joins a batch which waits for an instance begins a new state: see `Settings::final`.
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "batch.hpp"
#include "request.hpp"
#include "seen.hpp"
#include "settings.hpp"
#include "triton_api.h"

#define TIDAL_API extern "C" __attribute__((visibility("default")))

// Digest of the sources of this library.
TIDAL_API const char tidal_batcher_sources[] = "tidal_batcher_sources=" TIDAL_SOURCES;

namespace {

using namespace tidal::batcher;
using Clock = std::chrono::steady_clock;

class Batcher {
  public:
    explicit Batcher(Settings settings) : settings_(std::move(settings)), batch_(settings_) {}

    void begin() {
        if (open_) seen_.forget();  // the previous batch was sent
        open_ = true;
        asked_ = false;
        batch_.clear();
        seen_.begin();
    }

    void end() {
        if (!asked_) seen_.forget();  // this happens only before the first request of a new batch
        open_ = false;
    }

    bool include(TRITONBACKEND_Request* from) {
        asked_ = true;
        Request request = read_request(from, settings_);
        if (settings_.deadline_ms || settings_.wait_ms) {
            const std::chrono::duration<double, std::milli> now = Clock::now().time_since_epoch();
            request.seen_ms = seen_.at(from, now.count());
        }
        return batch_.take(request);
    }

  private:
    const Settings settings_;
    Batch batch_;
    Seen seen_;
    bool open_ = false, asked_ = false;
};

// Batchers of unloaded models, kept while a thread may still use one.
class Retired {
  public:
    void add(std::unique_ptr<Batcher> batcher) {
        const std::lock_guard<std::mutex> lock(mutex_);
        batchers_.emplace_back(Clock::now(), std::move(batcher));
    }

    void clear() {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto safe = Clock::now() - std::chrono::seconds(60);
        std::size_t over = 0;
        while (over < batchers_.size() && batchers_[over].first < safe) ++over;
        batchers_.erase(batchers_.begin(), batchers_.begin() + static_cast<std::ptrdiff_t>(over));
    }

  private:
    std::mutex mutex_;
    std::vector<std::pair<Clock::time_point, std::unique_ptr<Batcher>>> batchers_;
};

Retired& retired() {
    static Retired& kept = *new Retired;  // never destroyed: threads may outlive static objects
    return kept;
}

// A model's config, completed by Triton. Throws BadConfig if Triton does not return it.
std::string config_of(TRITONBACKEND_Model* model) {
    TRITONSERVER_Message* message = nullptr;
    TRITONSERVER_Error* error = TRITONBACKEND_ModelConfig(model, 1, &message);
    std::string text;
    if (!error) {
        const char* base = nullptr;
        std::size_t bytes = 0;
        error = TRITONSERVER_MessageSerializeToJson(message, &base, &bytes);
        if (!error) text.assign(base, bytes);
        if (TRITONSERVER_Error* left = TRITONSERVER_MessageDelete(message)) TRITONSERVER_ErrorDelete(left);
    }
    if (error) {
        const std::string reason = TRITONSERVER_ErrorMessage(error);
        TRITONSERVER_ErrorDelete(error);
        throw BadConfig("the batcher cannot read the model's config: " + reason);
    }
    return text;
}

void log(TRITONSERVER_LogLevel level, const std::string& message) {
    if (TRITONSERVER_Error* error = TRITONSERVER_LogMessage(level, "batcher.cpp", __LINE__, message.c_str()))
        TRITONSERVER_ErrorDelete(error);
}

void report(TRITONBACKEND_Model* model, const Settings& settings) {
    const char* name = "";
    if (TRITONSERVER_Error* error = TRITONBACKEND_ModelName(model, &name)) TRITONSERVER_ErrorDelete(error);
    const std::string who = std::string("batches of '") + name + "': ", kept = describe(settings);
    if (kept.empty())
        log(TRITONSERVER_LOG_WARN, who + "as without the batcher, because none of its parameters is set");
    else if (settings.final)
        log(TRITONSERVER_LOG_INFO, who + kept);
    else
        log(TRITONSERVER_LOG_WARN,
            who + kept + "; more requests may join a batch that waits for an instance, unless dynamic_batching lists "
                         "every preferred_batch_size from 1 to max_batch_size and has no max_queue_delay_microseconds");
}

}  // namespace

TIDAL_API TRITONSERVER_Error* TRITONBACKEND_ModelBatcherInitialize(TRITONBACKEND_Batcher** batcher,
                                                                   TRITONBACKEND_Model* model) noexcept {
    *batcher = nullptr;
    try {
        retired().clear();
        Settings settings = read_settings(config_of(model));
        report(model, settings);
        *batcher = reinterpret_cast<TRITONBACKEND_Batcher*>(new Batcher(std::move(settings)));
        return nullptr;
    } catch (const BadConfig& error) {
        return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, error.what());
    } catch (const std::exception& error) {
        return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL,
                                     (std::string("the batcher failed: ") + error.what()).c_str());
    }
}

// The batcher is null if it could not be initialized.
TIDAL_API TRITONSERVER_Error* TRITONBACKEND_ModelBatcherFinalize(TRITONBACKEND_Batcher* batcher) noexcept {
    if (batcher) try {
            retired().add(std::unique_ptr<Batcher>(reinterpret_cast<Batcher*>(batcher)));
        } catch (const std::exception&) {
            // Out of memory: the batcher is leaked, since a thread may still use it.
        }
    return nullptr;
}

TIDAL_API TRITONSERVER_Error* TRITONBACKEND_ModelBatchInitialize(const TRITONBACKEND_Batcher* batcher,
                                                                 void** state) noexcept {
    *state = const_cast<TRITONBACKEND_Batcher*>(batcher);
    if (*state) static_cast<Batcher*>(*state)->begin();
    return nullptr;
}

TIDAL_API TRITONSERVER_Error* TRITONBACKEND_ModelBatchFinalize(void* state) noexcept {
    if (state) static_cast<Batcher*>(state)->end();
    return nullptr;
}

TIDAL_API TRITONSERVER_Error* TRITONBACKEND_ModelBatchIncludeRequest(TRITONBACKEND_Request* request, void* state,
                                                                     bool* should_include) noexcept {
    *should_include = true;
    if (state) try {
            *should_include = static_cast<Batcher*>(state)->include(request);
        } catch (const std::exception&) {
            // Out of memory: include the request without checks.
        }
    return nullptr;
}
