#include "json.hpp"

#include <charconv>

namespace tidal::batcher {

class JsonReader {
  public:
    explicit JsonReader(std::string_view text) : text_(text) {}

    Json document() {
        Json value = read(0);
        skip_space();
        if (at_ != text_.size()) fail("something follows the value");
        return value;
    }

  private:
    static constexpr int deepest_ = 100;

    [[noreturn]] void fail(const char* reason) const {
        throw JsonError(std::string(reason) + " at byte " + std::to_string(at_));
    }

    void skip_space() {
        while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) ++at_;
    }

    bool take(char sign) {
        skip_space();
        if (at_ >= text_.size() || text_[at_] != sign) return false;
        ++at_;
        return true;
    }

    Json read(int depth) {
        if (depth > deepest_) fail("nested too deep");
        skip_space();
        if (at_ >= text_.size()) fail("the text ends early");
        Json value;
        if (take('{')) {
            value.kind_ = Json::Kind::object;
            members(value, depth);
        } else if (take('[')) {
            value.kind_ = Json::Kind::array;
            if (take(']')) return value;
            do value.items_.push_back(read(depth + 1));
            while (take(','));
            if (!take(']')) fail("expected , or ]");
        } else {
            value.kind_ = Json::Kind::scalar;
            value.text_ = take('"') ? string() : word();
        }
        return value;
    }

    void members(Json& object, int depth) {
        if (take('}')) return;
        do {
            if (!take('"')) fail("expected a name");
            object.names_.push_back(string());
            if (!take(':')) fail("expected :");
            object.items_.push_back(read(depth + 1));
        } while (take(','));
        if (!take('}')) fail("expected , or }");
    }

    std::string word() {
        const std::size_t start = at_;
        while (at_ < text_.size() && (std::string_view("+-.").find(text_[at_]) != std::string_view::npos ||
                                      (text_[at_] >= '0' && text_[at_] <= '9') ||
                                      ((text_[at_] | 0x20) >= 'a' && (text_[at_] | 0x20) <= 'z')))
            ++at_;
        if (at_ == start) fail("expected a value");
        return std::string(text_.substr(start, at_ - start));
    }

    std::string string() {
        std::string read;
        while (true) {
            if (at_ >= text_.size()) fail("a string does not end");
            const char sign = text_[at_++];
            if (sign == '"') return read;
            if (sign != '\\') {
                read += sign;
                continue;
            }
            if (at_ >= text_.size()) fail("a string does not end");
            const char escaped = text_[at_++];
            constexpr std::string_view signs = "\"\\/bfnrt", meant = "\"\\/\b\f\n\r\t";
            if (escaped == 'u')
                add_utf8(read, code_point());
            else if (const auto place = signs.find(escaped); place != std::string_view::npos)
                read += meant[place];
            else
                fail("unknown escape");
        }
    }

    unsigned code_unit() {
        if (text_.size() - at_ < 4) fail("a string does not end");
        unsigned unit = 0;
        const char* end = text_.data() + at_ + 4;
        if (std::from_chars(text_.data() + at_, end, unit, 16).ptr != end) fail("expected four hexadecimal digits");
        at_ += 4;
        return unit;
    }

    unsigned code_point() {
        const unsigned first = code_unit();
        if (first < 0xd800 || first > 0xdfff) return first;
        constexpr unsigned replacement = 0xfffd;
        if (first > 0xdbff || text_.substr(at_, 2) != "\\u") return replacement;
        at_ += 2;
        const unsigned second = code_unit();
        if (second < 0xdc00 || second > 0xdfff) return replacement;
        return 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
    }

    static void add_utf8(std::string& to, unsigned point) {
        const auto byte = [&](unsigned value) { to += static_cast<char>(value); };
        const auto rest = [&](unsigned shift) { byte(0x80 | ((point >> shift) & 0x3f)); };
        if (point < 0x80) return byte(point);
        if (point < 0x800) return byte(0xc0 | (point >> 6)), rest(0);
        if (point < 0x10000) return byte(0xe0 | (point >> 12)), rest(6), rest(0);
        byte(0xf0 | (point >> 18)), rest(12), rest(6), rest(0);
    }

    std::string_view text_;
    std::size_t at_ = 0;
};

Json Json::parse(std::string_view text) { return JsonReader(text).document(); }

const Json& Json::operator[](std::string_view name) const {
    static const Json nothing;
    for (std::size_t place = names_.size(); place-- > 0;)
        if (names_[place] == name) return items_[place];
    return nothing;
}

long long Json::whole(long long otherwise) const {
    long long value = 0;
    const char* const end = text_.data() + text_.size();
    const auto [stop, error] = std::from_chars(text_.data(), end, value);
    return error == std::errc() && stop == end && !text_.empty() ? value : otherwise;
}

}  // namespace tidal::batcher
