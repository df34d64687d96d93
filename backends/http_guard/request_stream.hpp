// Follows the HTTP/1.1 requests of one connection, byte by byte as they arrive, and says which the server must not see.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace guard {

// What a request may have.
struct Limits {
  uint64_t body;    // bytes of a body
  uint64_t form;    // bytes of a form-encoded body: the server puts it on the stack twice
  uint64_t pieces;  // pieces that a body arrives in: the server keeps each in a buffer of 1 KiB
  size_t header;    // bytes of the request line and all headers
  unsigned depth;   // nested arrays and objects of a JSON body: the server's parser recurses
  uint64_t elements;  // of all shapes in a body that is shorter: the server allocates them before it reads data
};

struct Refusal {
  int status;
  std::string message;
};

// What a JSON text would make the server do. It follows a text exactly as far as a JSON parser would accept it.
class JsonScan {
 public:
  void start(uint64_t bytes) { *this = JsonScan(); left_ = bytes; }
  // Take in what arrived next.
  void take(const char* data, size_t size);
  // The deepest nesting so far.
  unsigned deepest() const { return deepest_; }
  // Elements of all arrays under a key "shape" so far, each the product of its numbers; at most UINT64_MAX.
  uint64_t elements() const { return elements_; }

 private:
  // Follows the numbers of a shape; whether the character was part of them.
  bool take_shape(char c);
  // Follows what comes after a string that may be the key "shape".
  void take_after_key(char c);

  static constexpr int kNoKey = -1;

  uint64_t left_ = 0;  // bytes of the text still to come
  unsigned depth_ = 0, deepest_ = 0;
  bool begun_ = false, in_string_ = false, escaped_ = false;
  int matched_ = kNoKey;                    // characters of the present string that are those of the key
  bool has_escape_ = false;                 // the present string has escapes, so it may be the key written otherwise
  bool after_key_ = false, colon_ = false;  // the last string may be the key; a colon came after it
  bool in_shape_ = false, in_number_ = false;
  uint64_t number_ = 0, product_ = 1, elements_ = 0;
};

// Only requests whose end every parser agrees on are accepted: else one could be hidden in another's body.
class RequestStream {
 public:
  explicit RequestStream(const Limits& limits) : limits_(limits) {}

  // Take in what arrived next; the reason to refuse it, where there is one. Nothing may follow a refusal.
  std::optional<Refusal> take(const char* data, size_t size);

  // Requests that have arrived completely.
  uint64_t completed() const { return completed_; }

 private:
  enum class State { start, header, body, chunk_size, chunk_data, chunk_end, last_chunk };

  std::optional<Refusal> take_header();
  std::optional<Refusal> take_field(std::string_view name, std::string_view value);
  std::optional<Refusal> take_body(const char* data, size_t size);
  std::optional<Refusal> take_chunk_size(char c);
  // The reason to refuse a body of so many bytes or more, where there is one.
  std::optional<Refusal> too_large(uint64_t bytes) const;
  void complete();

  const Limits& limits_;
  State state_ = State::start;
  std::string text_;      // a header, a chunk's size line or what ends a chunk, so far
  uint64_t left_ = 0;     // bytes of the body, or of its present chunk, still to come
  uint64_t received_ = 0, pieces_ = 0, completed_ = 0;
  std::optional<uint64_t> content_length_, json_length_;
  bool chunked_ = false, form_ = false;
  JsonScan json_;
};

}  // namespace guard
