// Reading JSON, as far as a model's config needs it.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tidal::batcher {

struct JsonError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// One value. Looking for what is not there, or is of another kind, finds an empty value or text.
class Json {
  public:
    // Throws JsonError where the text is no JSON, or is nested deeper than 100 levels.
    static Json parse(std::string_view text);

    const Json& operator[](std::string_view name) const;  // the last member of that name
    const std::vector<Json>& items() const { return items_; }
    const std::vector<std::string>& names() const { return names_; }  // of an object's members, beside `items`
    // A string's text; a number or a word (true, false, null) as it is written.
    const std::string& text() const { return text_; }
    bool is_object() const { return kind_ == Kind::object; }
    // A whole number, also one that is written as a string, as protobuf does with 64 bits; `otherwise` for all else.
    long long whole(long long otherwise) const;

  private:
    enum class Kind { nothing, scalar, array, object };
    friend class JsonReader;

    Kind kind_ = Kind::nothing;
    std::string text_;
    std::vector<std::string> names_;
    std::vector<Json> items_;
};

}  // namespace tidal::batcher
