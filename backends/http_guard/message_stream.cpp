#include "message_stream.hpp"

#include <algorithm>

namespace guard {
namespace {

constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr unsigned char kData = 0, kHeaders = 1, kReset = 3, kEndsStream = 1, kPadded = 8;

uint32_t big_endian(const unsigned char* bytes, unsigned count) {
  uint32_t value = 0;
  for (unsigned n = 0; n < count; ++n) value = value << 8 | bytes[n];
  return value;
}

}  // namespace

void MessageStream::take(const char* begin, size_t size) {
  auto data = reinterpret_cast<const unsigned char*>(begin), end = data + size;
  while (data != end) {
    switch (state_) {
      case State::preface:
        if (*data++ != static_cast<unsigned char>(kPreface[have_])) state_ = State::other;  // TLS, for example
        else if (++have_ == kPreface.size()) state_ = State::head, have_ = 0;
        break;
      case State::other:
        return;
      case State::head:
        head_[have_++] = *data++;
        if (have_ < sizeof head_) break;
        have_ = 0;
        left_ = big_endian(head_, 3);
        stream_ = big_endian(head_ + 5, 4) & 0x7fffffff;
        padding_ = 0;
        if (head_[3] == kReset) messages_.erase(stream_);
        if (refused_ && stream_ != *refused_ && head_[3] <= kHeaders) others_ = true;
        state_ = head_[3] == kData && head_[4] & kPadded ? State::padding : State::payload;
        if (left_ == 0) {
          if (head_[3] == kData && head_[4] & kEndsStream) messages_.erase(stream_);
          state_ = State::head;
        }
        break;
      case State::padding:
        padding_ = *data++;
        --left_;
        if (padding_ > left_) padding_ = left_;
        state_ = left_ > 0 ? State::payload : State::head;
        break;
      case State::payload: {
        size_t part = std::min<size_t>(end - data, left_);
        if (head_[3] == kData) {
          size_t message = left_ > padding_ ? std::min<size_t>(part, left_ - padding_) : 0;
          if (!refused_) take_data(data, message);
        }
        data += part;
        left_ -= part;
        if (left_ > 0) break;
        if (head_[3] == kData && head_[4] & kEndsStream) messages_.erase(stream_);
        state_ = State::head;
        break;
      }
    }
  }
}

void MessageStream::take_data(const unsigned char* data, size_t size) {
  Message& message = messages_[stream_];
  while (size > 0) {
    size_t part = std::min<uint64_t>(size, message.left);
    message.left -= part, data += part, size -= part;
    if (size == 0) break;
    message.head[message.have++] = *data++, --size;
    if (message.have < sizeof message.head) continue;
    message.have = 0;
    message.left = big_endian(message.head + 1, 4);
    if (message.left > (message.head[0] ? limits_.compressed : limits_.message)) {
      refused_ = stream_;
      return;
    }
  }
}

}  // namespace guard
