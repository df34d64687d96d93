// Parses the gRPC messages of one HTTP/2 connection as their bytes arrive, and reports messages that are too large.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>

namespace guard {

// Limits of a message in bytes.
struct MessageLimits {
  uint64_t message;
  uint64_t compressed;  // of a compressed message, before it is decompressed
};

// Reads the headers of frames and, in DATA frames, the five-byte prefix of each message. Bytes that it cannot parse
// pass: the server refuses them.
class MessageStream {
 public:
  explicit MessageStream(const MessageLimits& limits) : limits_(limits) {}

  // Process the next bytes.
  void take(const char* data, size_t size);

  // The stream with a message that is too large, if any.
  std::optional<uint32_t> refused() const { return refused_; }
  // Whether another stream has sent a frame after that message.
  bool others() const { return others_; }

 private:
  struct Message {
    uint64_t left = 0;         // remaining bytes of the message
    unsigned char head[5] = {};  // its prefix: compression flag and length
    unsigned have = 0;         // received bytes of the prefix
  };

  void take_data(const unsigned char* data, size_t size);

  const MessageLimits& limits_;
  enum class State { preface, head, padding, payload, other } state_ = State::preface;
  size_t have_ = 0;              // received bytes of the preface, or of the header of a frame
  unsigned char head_[9] = {};
  uint32_t left_ = 0;            // remaining bytes of the payload of the frame
  uint32_t padding_ = 0;         // padding bytes within the payload
  uint32_t stream_ = 0;
  std::optional<uint32_t> refused_;
  bool others_ = false;
  std::unordered_map<uint32_t, Message> messages_;  // incomplete messages by stream
};

}  // namespace guard
