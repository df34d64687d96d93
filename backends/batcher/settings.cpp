#include "settings.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

namespace tidal::batcher {
namespace {

using Json = nlohmann::json;

constexpr std::string_view prefix = "TIDAL_BATCH_";
constexpr std::size_t most_keys = 8, longest_name = 256, shown = 80;

// Printable and short, since Triton puts messages into JSON.
std::string printable(std::string_view text) {
    std::string safe(text.substr(0, shown));
    for (char& sign : safe)
        if (sign < ' ' || sign > '~') sign = '?';
    return text.size() > shown ? safe + "..." : safe;
}

[[noreturn]] void refuse(std::string_view name, std::string_view value, const std::string& accepted) {
    throw BadConfig("parameter '" + std::string(name) + "' in config.pbtxt is '" + printable(value) + "'; expected " +
                    accepted);
}

Json parse(std::string_view text) {
    try {
        return Json::parse(text);
    } catch (const Json::parse_error& error) {  // its own message quotes the text, which may be of any size
        throw std::runtime_error("the model's config is not valid JSON (byte " + std::to_string(error.byte) + ")");
    }
}

// A member of an object; null if the value is not an object or has no such member.
const Json& member(const Json& object, const char* name) {
    static const Json& null = *new Json;
    const auto found = object.find(name);
    return object.is_object() && found != object.end() ? *found : null;
}

// The content of a string; another scalar as JSON; empty for null, arrays and objects.
std::string text_of(const Json& value) {
    if (value.is_string()) return value.get<std::string>();
    return value.is_primitive() && !value.is_null() ? value.dump() : std::string();
}

// A whole number, also in a string, as protobuf writes those of 64 bits; `otherwise` for every other value.
long long whole_or(const Json& value, long long otherwise) {
    if (value.is_number_unsigned() && value.get<std::uint64_t>() > std::numeric_limits<long long>::max()) return otherwise;
    if (value.is_number_integer()) return value.get<long long>();
    if (!value.is_string()) return otherwise;
    const auto& text = value.get_ref<const std::string&>();
    long long number = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return error == std::errc() && stop == text.data() + text.size() ? number : otherwise;
}

std::int64_t whole(std::string_view name, const Json& value, std::int64_t most, const char* meaning) {
    const long long number = whole_or(value, 0);
    if (number < 1 || number > most)
        refuse(name, text_of(value), "a whole number from 1 to " + std::to_string(most) + " (" + meaning + ")");
    return number;
}

double number(std::string_view name, const Json& value, double most, const char* meaning) {
    const std::string text = text_of(value);
    char* end = nullptr;
    const double parsed = std::strtod(text.c_str(), &end);
    if (text.empty() || end != text.c_str() + text.size() || !std::isfinite(parsed) || parsed < 0 || parsed > most) {
        std::ostringstream accepted;
        accepted << "a number from 0 to " << std::llround(most) << " (" << meaning << ")";
        refuse(name, text, accepted.str());
    }
    return parsed;
}

std::vector<std::string> names(std::string_view name, const std::string& text) {
    std::vector<std::string> found;
    std::istringstream parts(text + ",");  // so that an empty last name is detected
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
    for (const Json& input : member(config, "input")) {
        const std::string name = text_of(member(input, "name"));
        const bool is_text = text_of(member(input, "data_type")) == "TYPE_STRING";
        const Json& sizes = member(input, "dims");
        const auto varying =
            std::find_if(sizes.begin(), sizes.end(), [](const Json& size) { return whole_or(size, 0) == -1; });
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

// Without a delay, Triton sends a batch of a preferred size at once and adds nothing to it.
bool batches_are_final(const Json& config) {
    const Json& batching = member(config, "dynamic_batching");
    std::set<long long> preferred;
    for (const Json& size : member(batching, "preferred_batch_size")) preferred.insert(whole_or(size, 0));
    const long long most = whole_or(member(config, "max_batch_size"), 0);
    if (whole_or(member(batching, "max_queue_delay_microseconds"), 0) != 0) return false;
    if (most > static_cast<long long>(preferred.size())) return false;
    for (long long size = 1; size <= most; ++size)
        if (!preferred.count(size)) return false;
    return true;
}

}  // namespace

Settings read_settings(std::string_view text) {
    const Json config = parse(text);
    if (!member(config, "dynamic_batching").is_object())
        throw BadConfig("the batcher is called only with dynamic_batching { } in config.pbtxt, and it has none");
    Settings settings;
    std::string input;
    for (const auto& parameter : member(config, "parameters").items()) {
        const std::string& name = parameter.key();
        const Json& value = member(parameter.value(), "string_value");
        if (name.compare(0, prefix.size(), prefix) != 0) continue;
        if (name == "TIDAL_BATCH_TOKENS")
            settings.tokens = whole(name, value, 1'000'000'000'000, "longest length times rows of a batch at most");
        else if (name == "TIDAL_BATCH_LENGTH_BIN")
            settings.length_bin = whole(name, value, 1'000'000'000, "width of the bins of length");
        else if (name == "TIDAL_BATCH_KEY")
            settings.keys = names(name, text_of(value));
        else if (name == "TIDAL_BATCH_DEADLINE_SPREAD_MS")
            settings.deadline_ms = number(name, value, 3.6e6, "milliseconds between the deadlines of a batch at most");
        else if (name == "TIDAL_BATCH_UTILITY_SPREAD")
            settings.utility = number(name, value, 1e6, "difference of utilities in a batch at most");
        else if (name == "TIDAL_BATCH_WAIT_MS")
            settings.wait_ms = number(name, value, 3.6e6, "milliseconds in which a batch takes requests");
        else if (name == "TIDAL_BATCH_LENGTH_INPUT")
            input = text_of(value);
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
