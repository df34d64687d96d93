#include "settings.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>
#include <sstream>

#include "json.hpp"

namespace tidal::batcher {
namespace {

constexpr std::string_view prefix = "TIDAL_BATCH_";
constexpr std::size_t most_keys = 8, longest_name = 256, shown = 80;

// As it may stand in a message that goes through Triton's JSON: only what is printable, and not too much.
std::string printable(std::string_view text) {
    std::string safe(text.substr(0, shown));
    for (char& sign : safe)
        if (sign < ' ' || sign > '~') sign = '?';
    return text.size() > shown ? safe + "..." : safe;
}

[[noreturn]] void refuse(std::string_view name, std::string_view value, const std::string& accepted) {
    throw BadConfig("parameter '" + std::string(name) + "' in config.pbtxt is '" + printable(value) + "': accepted is " +
                    accepted);
}

std::int64_t whole(std::string_view name, const Json& value, std::int64_t most, const char* meaning) {
    const long long read = value.whole(0);
    if (read < 1 || read > most)
        refuse(name, value.text(), "a whole number from 1 to " + std::to_string(most) + " (" + meaning + ")");
    return read;
}

double number(std::string_view name, const Json& value, double most, const char* meaning) {
    const std::string& text = value.text();
    char* end = nullptr;
    const double read = std::strtod(text.c_str(), &end);
    if (text.empty() || end != text.c_str() + text.size() || !std::isfinite(read) || read < 0 || read > most) {
        std::ostringstream accepted;
        accepted << "a number from 0 to " << std::llround(most) << " (" << meaning << ")";
        refuse(name, text, accepted.str());
    }
    return read;
}

std::vector<std::string> names(std::string_view name, const std::string& text) {
    std::vector<std::string> found;
    std::istringstream parts(text + ",");  // so that an empty last name is seen
    for (std::string part; std::getline(parts, part, ',');) {
        const auto first = part.find_first_not_of(' '), last = part.find_last_not_of(' ');
        found.push_back(first == std::string::npos ? "" : part.substr(first, last - first + 1));
    }
    const auto bad = [](const std::string& each) { return each.empty() || each.size() > longest_name; };
    if (found.empty() || found.size() > most_keys || std::any_of(found.begin(), found.end(), bad))
        refuse(name, text, "1 to " + std::to_string(most_keys) + " names of request parameters with commas between");
    return found;
}

LengthInput length_input(const Json& config, std::string_view wanted, std::string_view needed_by) {
    std::string inputs;
    for (const Json& input : config["input"].items()) {
        const std::string& name = input["name"].text();
        const bool is_text = input["data_type"].text() == "TYPE_STRING";
        const auto& sizes = input["dims"].items();
        const auto varying =
            std::find_if(sizes.begin(), sizes.end(), [](const Json& size) { return size.whole(0) == -1; });
        if (wanted.empty() ? !is_text && varying != sizes.end() : name == wanted)
            return {name, varying == sizes.end() ? std::max<std::size_t>(sizes.size(), 1)
                                                 : static_cast<std::size_t>(varying - sizes.begin()) + 1};
        inputs += (inputs.empty() ? "" : ", ") + printable(name);
    }
    if (!wanted.empty()) refuse("TIDAL_BATCH_LENGTH_INPUT", wanted, "one of the model's inputs: " + inputs);
    throw BadConfig(std::string(needed_by) +
                    " in config.pbtxt needs an input whose length varies (-1 in its dims), and the model has none: "
                    "TIDAL_BATCH_LENGTH_INPUT may name a text input, whose length is in bytes");
}

// Without a delay, Triton sends whatever has a preferred size at once and adds nothing to it afterwards.
bool batches_are_final(const Json& config) {
    const Json& batching = config["dynamic_batching"];
    std::set<long long> preferred;
    for (const Json& size : batching["preferred_batch_size"].items()) preferred.insert(size.whole(0));
    const long long most = config["max_batch_size"].whole(0);
    if (batching["max_queue_delay_microseconds"].whole(0) != 0) return false;
    if (most > static_cast<long long>(preferred.size())) return false;
    for (long long size = 1; size <= most; ++size)
        if (!preferred.count(size)) return false;
    return true;
}

}  // namespace

Settings read_settings(std::string_view text) {
    const Json config = Json::parse(text);
    if (!config["dynamic_batching"].is_object())
        throw BadConfig("the batcher is called only with dynamic_batching { } in config.pbtxt, and it has none");
    Settings settings;
    std::string input;
    const Json& parameters = config["parameters"];
    for (std::size_t place = 0; place < parameters.names().size(); ++place) {
        const std::string& name = parameters.names()[place];
        const Json& value = parameters.items()[place]["string_value"];
        if (name.compare(0, prefix.size(), prefix) != 0) continue;
        if (name == "TIDAL_BATCH_TOKENS")
            settings.tokens = whole(name, value, 1'000'000'000'000, "longest length times rows of a batch at most");
        else if (name == "TIDAL_BATCH_LENGTH_BIN")
            settings.length_bin = whole(name, value, 1'000'000'000, "width of the bins of length");
        else if (name == "TIDAL_BATCH_KEY")
            settings.keys = names(name, value.text());
        else if (name == "TIDAL_BATCH_DEADLINE_SPREAD_MS")
            settings.deadline_ms = number(name, value, 3.6e6, "milliseconds between the deadlines of a batch at most");
        else if (name == "TIDAL_BATCH_UTILITY_SPREAD")
            settings.utility = number(name, value, 1e6, "difference of utilities in a batch at most");
        else if (name == "TIDAL_BATCH_WAIT_MS")
            settings.wait_ms = number(name, value, 3.6e6, "milliseconds in which a batch takes requests");
        else if (name == "TIDAL_BATCH_LENGTH_INPUT")
            input = value.text();
        else
            throw BadConfig("unknown parameter '" + printable(name) +
                            "' in config.pbtxt: the batcher takes TIDAL_BATCH_TOKENS, TIDAL_BATCH_LENGTH_BIN, "
                            "TIDAL_BATCH_LENGTH_INPUT, TIDAL_BATCH_KEY, TIDAL_BATCH_DEADLINE_SPREAD_MS, "
                            "TIDAL_BATCH_UTILITY_SPREAD and TIDAL_BATCH_WAIT_MS");
    }
    if (settings.needs_length())
        settings.length = length_input(config, input, settings.tokens ? "TIDAL_BATCH_TOKENS" : "TIDAL_BATCH_LENGTH_BIN");
    else if (!input.empty())
        refuse("TIDAL_BATCH_LENGTH_INPUT", input, "an input beside TIDAL_BATCH_TOKENS or TIDAL_BATCH_LENGTH_BIN");
    settings.final = batches_are_final(config);
    return settings;
}

std::string describe(const Settings& settings) {
    std::ostringstream said;
    const auto next = [&]() -> std::ostream& { return said << (said.tellp() > 0 ? ", " : ""); };
    if (settings.tokens) next() << "at most " << *settings.tokens << " of " << printable(settings.length.name);
    if (settings.length_bin)
        next() << "lengths of " << printable(settings.length.name) << " in one bin of " << *settings.length_bin;
    for (const std::string& key : settings.keys) next() << "one " << printable(key);
    if (settings.deadline_ms) next() << "deadlines within " << *settings.deadline_ms << " ms";
    if (settings.utility) next() << "utilities within " << *settings.utility;
    if (settings.wait_ms) next() << "open for " << *settings.wait_ms << " ms";
    return said.str();
}

}  // namespace tidal::batcher
