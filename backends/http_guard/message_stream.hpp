// Follows the gRPC messages of one HTTP/2 connection as they arrive, and says when one is too large to be taken in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>

namespace guard {

// What a message may have, in bytes.
struct MessageLimits {
  uint64_t message;
  uint64_t compressed;  // on the wire, of one that is decompressed
};

// It reads the headers of frames, and in frames of data the five bytes before each message. What it does not understand
// it lets pass: the server refuses that itself.
class MessageStream {
 public:
  explicit MessageStream(const MessageLimits& limits) : limits_(limits) {}

  // Take in what arrived next.
  void take(const char* data, size_t size);

  // The stream whose message is too large, where there is one.
  std::optional<uint32_t> refused() const { return refused_; }
  // Whether another stream has sent something since.
  bool others() const { return others_; }

 private:
  struct Message {
    uint64_t left = 0;         // bytes of the message that are still to come
    unsigned char head[5] = {};  // whether it is compressed, and its length
    unsigned have = 0;         // bytes of those
  };

  void take_data(const unsigned char* data, size_t size);

  const MessageLimits& limits_;
  enum class State { preface, head, padding, payload, other } state_ = State::preface;
  size_t have_ = 0;              // bytes of the preface, or of a frame's head
  unsigned char head_[9] = {};
  uint32_t left_ = 0;            // bytes of the frame's payload
  uint32_t padding_ = 0;         // of which these are padding
  uint32_t stream_ = 0;
  std::optional<uint32_t> refused_;
  bool others_ = false;
  std::unordered_map<uint32_t, Message> messages_;  // of streams that have sent a part of one
};

}  // namespace guard
