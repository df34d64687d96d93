// Parses the HTTP/1.1 requests of one connection as their bytes arrive, and refuses those that would crash the server.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace guard {

// Limits of a request.
struct Limits {
  uint64_t body;    // bytes of the body
  uint64_t form;    // bytes of a form-encoded body, which the server copies to the stack twice
  uint64_t pieces;  // pieces that the body arrives in: the server stores each in a buffer of 1 KiB
  size_t header;    // bytes of the request line and all headers
  unsigned depth;   // nesting of arrays and objects in a JSON body: the server's parser is recursive
  uint64_t elements;  // total of all shapes, if the body is shorter: the server allocates them before it reads data
};

struct Refusal {
  int status;
  std::string message;
};

// Measures the nesting and the tensor shapes of a JSON text, exactly as far as a JSON parser would accept the text.
class JsonScan {
 public:
  void start(uint64_t bytes) { *this = JsonScan(); left_ = bytes; }
  // Process the next bytes.
  void take(const char* data, size_t size);
  // The deepest nesting so far.
  unsigned deepest() const { return deepest_; }
  // Total of the arrays under a key "shape" so far, each counted as the product of its numbers; saturates at UINT64_MAX.
  uint64_t elements() const { return elements_; }

 private:
  // Process a character within a shape; returns whether it belongs to the shape.
  bool take_shape(char c);
  // Process a character after a string that may be the key "shape".
  void take_after_key(char c);

  static constexpr int kNoKey = -1;

  uint64_t left_ = 0;  // remaining bytes of the text
  unsigned depth_ = 0, deepest_ = 0;
  bool begun_ = false, in_string_ = false, escaped_ = false;
  int matched_ = kNoKey;                    // leading characters of the current string that match the key
  bool has_escape_ = false;                 // the current string has escapes, so it may be an escaped form of the key
  bool after_key_ = false, colon_ = false;  // the last string may be the key; a colon followed it
  bool in_shape_ = false, in_number_ = false;
  uint64_t number_ = 0, product_ = 1, elements_ = 0;
};

// Accepts only requests whose end is unambiguous for every parser: else a request could be smuggled in the body of
// another one.
class RequestStream {
 public:
  explicit RequestStream(const Limits& limits) : limits_(limits) {}

  // Process the next bytes; returns the reason to refuse the request, if any. Must not be called after a refusal.
  std::optional<Refusal> take(const char* data, size_t size);

  // Number of requests that have arrived completely.
  uint64_t completed() const { return completed_; }

 private:
  enum class State { start, header, body, chunk_size, chunk_data, chunk_end, last_chunk };

  std::optional<Refusal> take_header();
  std::optional<Refusal> take_field(std::string_view name, std::string_view value);
  std::optional<Refusal> take_body(const char* data, size_t size);
  std::optional<Refusal> take_chunk_size(char c);
  // The reason to refuse a body of at least `bytes`, if any.
  std::optional<Refusal> too_large(uint64_t bytes) const;
  void complete();

  const Limits& limits_;
  State state_ = State::start;
  std::string text_;      // received part of a header, of a chunk's size line, or of the end of a chunk
  uint64_t left_ = 0;     // remaining bytes of the body, or of its current chunk
  uint64_t received_ = 0, pieces_ = 0, completed_ = 0;
  std::optional<uint64_t> content_length_, json_length_;
  bool chunked_ = false, form_ = false;
  JsonScan json_;
};

}  // namespace guard
