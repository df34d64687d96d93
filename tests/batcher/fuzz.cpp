// The batcher at random: configs, requests and orders of calls that nobody would send.
#include <iostream>
#include <limits>
#include <memory>
#include <random>

#include "host.hpp"

namespace host {
namespace {

class Random {
  public:
    explicit Random(unsigned seed) : engine_(seed) {}

    std::size_t below(std::size_t end) { return std::uniform_int_distribution<std::size_t>(0, end - 1)(engine_); }
    bool once_in(std::size_t count) { return below(count) == 0; }
    template <typename Value>
    Value one_of(std::initializer_list<Value> values) {
        return *(values.begin() + below(values.size()));
    }

    std::string bytes() {
        std::string made(once_in(20) ? 5000 : below(12), ' ');
        for (char& each : made) each = static_cast<char>(below(256));
        return made;
    }

    std::string text() {
        return once_in(3) ? bytes()
                          : one_of<std::string>({"", "1", "8", "32", "0", "-1", "1e3", "0.5", "nan", "inf", "-0", "0x10",
                                                 "1e999", "99999999999999999999", "task", "task,user", " a , b ", ",",
                                                 "input_ids", "text", "a\\u0041\\ud83d\\ude00", "\\ud800", "\\u12"});
    }

    std::int64_t whole() {
        return one_of<std::int64_t>({-1, 0, 1, 2, 7, 1 << 20, std::numeric_limits<std::int64_t>::max(),
                                     std::numeric_limits<std::int64_t>::min(), static_cast<std::int64_t>(below(100))});
    }

    double number() {
        using Limits = std::numeric_limits<double>;
        return one_of<double>({0, -1, 0.5, 1e300, -1e300, Limits::infinity(), Limits::quiet_NaN(), Limits::denorm_min(),
                               static_cast<double>(below(100))});
    }

    std::string config() {
        std::string parameters;
        for (std::size_t left = below(6); left > 0; --left)
            parameters += (parameters.empty() ? "\"" : ",\"") +
                          one_of<std::string>({"TIDAL_BATCH_TOKENS", "TIDAL_BATCH_LENGTH_BIN", "TIDAL_BATCH_KEY",
                                               "TIDAL_BATCH_DEADLINE_SPREAD_MS", "TIDAL_BATCH_UTILITY_SPREAD",
                                               "TIDAL_BATCH_WAIT_MS", "TIDAL_BATCH_LENGTH_INPUT", "TIDAL_BATCH_X", "p"}) +
                          "\":" + one_of<std::string>({"{\"string_value\":\"", "{\"string_value\":\"", "\"", "[\""}) +
                          (once_in(2) ? std::to_string(1 + below(64)) : text()) + "\"" +
                          one_of<std::string>({"}", "}", "}", "", "]"});
        std::string made = R"({"name":"m","max_batch_size":)" + one_of<std::string>({"8", "0", "-3", "1e9", "[]"}) +
                           R"(,"input":[{"name":"text","data_type":"TYPE_STRING","dims":[1]},{"name":"input_ids",)"
                           R"("data_type":"TYPE_INT64","dims":["-1"]}],"dynamic_batching":{"preferred_batch_size":[8]},)"
                           R"("parameters":{)" + parameters + "}}";
        if (once_in(4)) made[below(made.size())] = static_cast<char>(below(256));
        if (once_in(8)) made.resize(below(made.size()));
        if (once_in(50)) made = std::string(below(5000), one_of<char>({'[', '{', '"', '\\'}));
        return made;
    }

    std::unique_ptr<TRITONBACKEND_Request> request() {
        auto made = std::make_unique<TRITONBACKEND_Request>();
        for (std::size_t left = below(5); left > 0; --left) {
            TRITONBACKEND_Request::Parameter each{
                one_of<std::string>({"task", "latency_ms", "utility", "user", "a", ""}), TRITONSERVER_PARAMETER_STRING, {}};
            switch (below(6)) {
                case 0: each.type = TRITONSERVER_PARAMETER_INT, each.value = whole(); break;
                case 1: each.type = TRITONSERVER_PARAMETER_DOUBLE, each.value = number(); break;
                case 2: each.type = TRITONSERVER_PARAMETER_BOOL, each.value = once_in(2); break;
                case 3: each.type = one_of({TRITONSERVER_PARAMETER_BYTES, TRITONSERVER_PARAMETER_INT}); break;
                default: each.value = once_in(50) ? std::string(100000, 'x') : text();
            }
            made->parameters.push_back(each);
        }
        for (const char* name : {"input_ids", "text"}) {
            if (once_in(8)) continue;
            TRITONBACKEND_Input& input = made->inputs[name];
            input.type = one_of({TRITONSERVER_TYPE_BYTES, TRITONSERVER_TYPE_INVALID, static_cast<TRITONSERVER_DataType>(9)});
            input.bytes = static_cast<std::uint64_t>(whole());
            for (std::size_t left = below(4); left > 0; --left) input.shape.push_back(whole());
        }
        return made;
    }

  private:
    std::mt19937 engine_;
};

}  // namespace

int fuzz(const Library& library, unsigned seed, int rounds) {
    Random random(seed);
    int broken = 0, accepted = 0, taken = 0, refused = 0;
    const auto fail = [&](const char* rule) { ++broken, std::cerr << "broken: " << rule << "\n"; };
    for (int round = 0; round < rounds; ++round) {
        fail_every = random.once_in(4) ? static_cast<unsigned>(1 + random.below(30)) : 0;
        TRITONBACKEND_Model model{"m", random.config()};
        TRITONBACKEND_Batcher* batcher = nullptr;
        if (TRITONSERVER_Error* error = library.batcher_initialize(&batcher, &model)) {
            if (batcher) fail("a batcher beside an error");
            if (error->message.size() > 1000) fail("an error says no more than needed");
            TRITONSERVER_ErrorDelete(error);
        } else {
            ++accepted;
        }
        std::vector<std::unique_ptr<TRITONBACKEND_Request>> requests;
        for (std::size_t each = 0; each < 6; ++each) requests.push_back(random.request());
        void* state = nullptr;
        bool first = false;
        for (std::size_t step = 0; step < 40; ++step) {
            const std::size_t which = random.below(requests.size());
            switch (random.below(8)) {
                case 0:
                    if (library.batch_initialize(batcher, &state)) fail("a batch begins");
                    first = true;
                    break;
                case 1:
                    if (library.batch_finalize(state)) fail("a batch ends");
                    state = nullptr;
                    break;
                case 2:
                    requests[which] = random.request();
                    break;
                default:
                    bool included = false;
                    if (library.include(requests[which].get(), state, &included)) fail("asking gives no error");
                    if (!included && (first || !state || !batcher)) fail("the first of a batch is taken");
                    ++(included ? taken : refused);
                    first = false;
            }
        }
        if (library.batcher_finalize(batcher)) fail("a batcher ends");
        // The thread that forms batches may come once more after the end.
        if (state && library.batch_finalize(state)) fail("a batch ends after its batcher");
        if (library.batch_initialize(nullptr, &state) || state) fail("a batch begins without a batcher");
        if (errors_alive != 0) fail("errors are deleted");
        errors_alive = 0;
        logged.clear();
    }
    std::cout << accepted << " models, " << taken << " taken, " << refused << " refused\n";
    return broken ? 1 : accepted && refused ? 0 : 4;
}

}  // namespace host
