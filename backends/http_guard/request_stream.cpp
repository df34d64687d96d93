#include "request_stream.hpp"

#include <algorithm>
#include <array>
#include <cctype>

namespace guard {
namespace {

// Characters that change the nesting of a JSON text, or begin a string.
constexpr std::array<bool, 256> kStructure = [] {
  std::array<bool, 256> table{};
  for (char c : {'[', ']', '{', '}', '"'}) table[static_cast<unsigned char>(c)] = true;
  return table;
}();

constexpr std::string_view kLineEnd = "\r\n";
constexpr std::string_view kShape = "shape";

bool is_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), [](unsigned char c) { return std::tolower(c); });
  return result;
}

// Parse a number of 1 to 15 digits.
std::optional<uint64_t> number(std::string_view text) {
  if (text.empty() || text.size() > 15) return std::nullopt;
  uint64_t value = 0;
  for (char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + (c - '0');
  }
  return value;
}

// Whether CR and LF occur only as CR LF from a position on; the LF of a final CR may not have arrived yet.
bool has_whole_lines(std::string_view text, size_t from) {
  for (size_t n = from; n < text.size(); ++n)
    if ((text[n] == '\n') != (n > 0 && text[n - 1] == '\r')) return false;
  return true;
}

Refusal malformed(const std::string& what) { return {400, "malformed HTTP request: " + what}; }

}  // namespace

bool JsonScan::take_shape(char c) {
  if (c >= '0' && c <= '9') {
    uint64_t digit = c - '0';
    number_ = number_ > (UINT64_MAX - digit) / 10 ? UINT64_MAX : number_ * 10 + digit;
    in_number_ = true;
    return true;
  }
  if (kStructure[static_cast<unsigned char>(c)] || c == ',') {
    if (in_number_ && __builtin_mul_overflow(product_, number_, &product_)) product_ = UINT64_MAX;
    number_ = 0, in_number_ = false;
    if (c == ',') return true;
    // The end of the shape, or something else than an array of numbers, which the server refuses.
    if (__builtin_add_overflow(elements_, product_, &elements_)) elements_ = UINT64_MAX;
    in_shape_ = false;
    return false;
  }
  return true;
}

void JsonScan::take_after_key(char c) {
  if (c == ' ' || c == '\t' || c == '\r' || c == '\n') return;
  if (c == ':' && !colon_) {
    colon_ = true;
    return;
  }
  in_shape_ = colon_ && c == '[';
  if (in_shape_) product_ = 1, number_ = 0, in_number_ = false;
  after_key_ = false;
}

void JsonScan::take(const char* data, size_t size) {
  const char* end = data + std::min<uint64_t>(size, left_);
  left_ -= end - data;
  for (; data != end; ++data) {
    // Skip characters that do not change the state, which are most.
    if (in_string_ && !escaped_ && matched_ == kNoKey)
      data = std::find_if(data, end, [](char each) { return each == '"' || each == '\\'; });
    else if (begun_ && !in_string_ && !in_shape_ && !after_key_)
      data = std::find_if(data, end, [](char each) { return kStructure[static_cast<unsigned char>(each)]; });
    if (data == end) break;
    char c = *data;
    if (in_string_) {
      if (escaped_) escaped_ = false;
      else if (c == '\\') escaped_ = has_escape_ = true;
      else if (c == '"') {
        in_string_ = false;
        after_key_ = has_escape_ || matched_ == static_cast<int>(kShape.size());
        colon_ = false;
      } else if (matched_ != kNoKey) {
        bool same = matched_ < static_cast<int>(kShape.size()) && c == kShape[matched_];
        matched_ = same ? matched_ + 1 : kNoKey;
      }
      continue;
    }
    if (in_shape_ && take_shape(c)) continue;
    if (after_key_) take_after_key(c);
    if (begun_ && !kStructure[static_cast<unsigned char>(c)]) continue;
    if (c == '[' || c == '{') {
      begun_ = true;
      deepest_ = std::max(deepest_, ++depth_);
      continue;
    }
    if (c == '"') in_string_ = true, has_escape_ = false, matched_ = 0;
    else if ((c == ']' || c == '}') && depth_ > 0) --depth_;
    // Stop at a text that is not an array or object, and at the end of one.
    bool blank = c == ' ' || c == '\t' || c == '\r' || c == '\n';
    if (depth_ == 0 && (begun_ || !blank)) {
      left_ = 0;
      break;
    }
  }
}

std::optional<Refusal> RequestStream::take(const char* data, size_t size) {
  const char* end = data + size;
  while (data != end) {
    switch (state_) {
      case State::start:
        if (*data == '\r' || *data == '\n') {
          ++data;
          break;
        }
        text_.clear();
        content_length_.reset();
        json_length_.reset();
        chunked_ = form_ = false;
        received_ = pieces_ = 0;
        state_ = State::header;
        break;
      case State::header: {
        size_t before = text_.size();
        text_.append(data, std::min<size_t>(end - data, limits_.header + 1 - before));
        size_t found = text_.find("\r\n\r\n", before < 3 ? 0 : before - 3);
        // Check before the header is complete: libevent also accepts other line ends, and could see an earlier end.
        if (!has_whole_lines(std::string_view(text_).substr(0, found), before)) return malformed("a line does not end in CR LF");
        if (found == std::string::npos) {
          if (text_.size() > limits_.header)
            return Refusal{431, "the request line and headers have more than " + std::to_string(limits_.header) + " bytes"};
          return std::nullopt;
        }
        text_.resize(found + 4);
        data += text_.size() - before;
        if (auto refusal = take_header()) return refusal;
        break;
      }
      case State::body:
      case State::chunk_data: {
        size_t part = std::min<uint64_t>(end - data, left_);
        if (auto refusal = take_body(data, part)) return refusal;
        data += part;
        if (left_ > 0) break;
        if (state_ == State::body) complete();
        else state_ = State::chunk_end, text_.clear();
        break;
      }
      case State::chunk_size:
        if (auto refusal = take_chunk_size(*data++)) return refusal;
        break;
      case State::chunk_end:
      case State::last_chunk:
        if (*data++ != kLineEnd[text_.size()])
          return malformed(state_ == State::chunk_end ? "a chunk is longer than its size" : "trailers are not accepted");
        text_.push_back(kLineEnd[text_.size()]);
        if (text_.size() < kLineEnd.size()) break;
        text_.clear();
        if (state_ == State::last_chunk) complete();
        else state_ = State::chunk_size;
        break;
    }
  }
  return std::nullopt;
}

std::optional<Refusal> RequestStream::take_header() {
  std::string_view rest(text_);
  size_t end = rest.find(kLineEnd);
  std::string_view line = rest.substr(0, end);
  size_t method = line.find(' '), version = line.rfind(' ');
  if (method == std::string_view::npos || version <= method + 1) return malformed("no request line");
  std::string_view target = line.substr(method + 1, version - method - 1);
  if (!std::all_of(line.begin(), line.begin() + method, [](char c) { return c >= 'A' && c <= 'Z'; }) ||
      line.substr(0, method) == "CONNECT" ||
      std::any_of(target.begin(), target.end(), [](unsigned char c) { return c <= ' ' || c == 127; }) ||
      (line.substr(version + 1) != "HTTP/1.1" && line.substr(version + 1) != "HTTP/1.0"))
    return malformed("the request line is not METHOD TARGET HTTP/1.1");
  target = target.substr(0, target.find_first_of("?#"));
  for (rest.remove_prefix(end + 2); rest != kLineEnd; rest.remove_prefix(end + 2)) {
    end = rest.find(kLineEnd);
    line = rest.substr(0, end);
    size_t colon = line.find(':');
    if (colon == 0 || colon == std::string_view::npos || !std::all_of(line.begin(), line.begin() + colon, is_name))
      return malformed("a header is not NAME: VALUE");
    std::string_view value = line.substr(std::min(line.find_first_not_of(' ', colon + 1), line.size()));
    if (std::any_of(value.begin(), value.end(), [](unsigned char c) { return (c < ' ' && c != '\t') || c == 127; }))
      return malformed("a header has control characters");
    if (auto refusal = take_field(lower(line.substr(0, colon)), value)) return refusal;
  }
  if (chunked_ && content_length_) return malformed("both Content-Length and Transfer-Encoding");
  if (content_length_)
    if (auto refusal = too_large(*content_length_)) return refusal;
  // In an inference request with binary tensors only the first part is JSON; other bodies may be JSON entirely.
  bool infer = target.size() >= 6 && target.substr(target.size() - 6) == "/infer";
  json_.start(infer && json_length_ ? *json_length_ : UINT64_MAX);
  text_.clear();
  if (chunked_) {
    state_ = State::chunk_size;
  } else if (content_length_.value_or(0) > 0) {
    left_ = *content_length_;
    state_ = State::body;
  } else {
    complete();
  }
  return std::nullopt;
}

std::optional<Refusal> RequestStream::take_field(std::string_view name, std::string_view value) {
  if (name == "content-length" || name == "inference-header-content-length") {
    std::optional<uint64_t>& length = name == "content-length" ? content_length_ : json_length_;
    if (length) return malformed(std::string(name) + " is given twice");
    length = number(value);
    if (!length) return malformed(std::string(name) + " is not a number");
  } else if (name == "transfer-encoding") {
    if (chunked_ || (value != "chunked" && value != "Chunked"))
      return malformed("Transfer-Encoding is not 'chunked'");
    chunked_ = true;
  } else if (name == "content-type") {
    form_ = form_ || lower(value).find("x-www-form-urlencoded") != std::string::npos;
  } else if (name == "content-encoding" && lower(value) != "identity") {
    return Refusal{415, "Content-Encoding '" + std::string(value.substr(0, 40)) +
                            "' is not accepted by this release of Triton: send the body uncompressed, or use gRPC"};
  }
  return std::nullopt;
}

std::optional<Refusal> RequestStream::take_body(const char* data, size_t size) {
  left_ -= size;
  received_ += size;
  if (++pieces_ > limits_.pieces)
    return Refusal{413, "the request body arrived in more than " + std::to_string(limits_.pieces) +
                            " pieces: send larger chunks"};
  json_.take(data, size);
  if (json_.deepest() > limits_.depth)
    return Refusal{400, "the JSON is nested deeper than " + std::to_string(limits_.depth) + " levels"};
  // Each element of a tensor has at least one byte in the body, except in shared memory.
  uint64_t most = std::max(limits_.elements, content_length_.value_or(0));
  if (json_.elements() > most)
    return Refusal{400, "the shapes of the tensors have more than " + std::to_string(most) +
                            " elements: send no more than the body holds, or use gRPC for larger tensors in shared memory"};
  return std::nullopt;
}

std::optional<Refusal> RequestStream::take_chunk_size(char c) {
  if (c == '\n' && !text_.empty() && text_.back() == '\r') {
    if (text_.size() == 1) return malformed("a chunk has no size");
    left_ = std::stoull(text_, nullptr, 16);
    text_.clear();
    if (auto refusal = too_large(received_ + left_)) return refusal;
    state_ = left_ > 0 ? State::chunk_data : State::last_chunk;
    return std::nullopt;
  }
  bool ended = !text_.empty() && text_.back() == '\r';
  if (ended || (c != '\r' && !std::isxdigit(static_cast<unsigned char>(c))) || text_.size() > 8)
    return malformed("a chunk's size is not up to 8 hexadecimal digits");
  text_.push_back(c);
  return std::nullopt;
}

std::optional<Refusal> RequestStream::too_large(uint64_t bytes) const {
  if (bytes <= (form_ ? std::min(limits_.form, limits_.body) : limits_.body)) return std::nullopt;
  std::string has = std::string(chunked_ ? " has at least " : " has ") + std::to_string(bytes);
  if (bytes <= limits_.body)
    return Refusal{413, "the form-encoded request body" + has + " bytes; this release of Triton accepts up to " +
                            std::to_string(limits_.form) + ": send it with the header Content-Type: application/json"};
  return Refusal{413, "the request body" + has + " bytes; this server accepts up to " + std::to_string(limits_.body) +
                          ": send less in one request, or raise the limit with tidal serve --http-max-input-size"};
}

void RequestStream::complete() {
  ++completed_;
  state_ = State::start;
}

}  // namespace guard
