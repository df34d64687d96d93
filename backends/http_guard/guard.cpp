// Preloaded into tritonserver: refuses requests that would crash it.
//
// Releases before 25.07 put a request's chunks, or twice its form-encoded body, on the stack of an HTTP thread
// (CVE-2025-23310, CVE-2025-23311), limit neither bodies nor decompression, parse JSON recursively, and allocate memory
// by a tensor's shape before they read its data. Their HTTP front end is libevent, which reads sockets with `readv`;
// bytes of accepted connections pass through a `RequestStream` first. A refused request is answered here, and its rest
// does not reach libevent. gRPC reads with `recvmsg` and buffers messages of up to 2 GiB before it checks them; these
// bytes pass through a `MessageStream`. The guard is inactive unless TIDAL_HTTP_MAX_BODY is set.
#include <dlfcn.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "message_stream.hpp"
#include "request_stream.hpp"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

// Number of bytes of a refused request to read and drop, so that its sender can read the response.
constexpr uint64_t kMostDropped = 1ull << 30;
constexpr size_t kDescriptors = 1 << 20;
constexpr uint64_t kLeastPieces = 1 << 16;

// Maximum expansion of a byte of deflate.
constexpr uint64_t kDeflate = 1032;

guard::MessageLimits message_limits{UINT64_MAX, UINT64_MAX};
guard::Limits limits{0, 4 << 20, 0, 64 << 10, 1000, 1 << 24};
pid_t process;

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

struct Connection {
  guard::RequestStream requests{limits};
  guard::MessageStream messages{message_limits};
  uint64_t answered = 0;  // requests that had arrived when the server last wrote
  bool refused = false;
  uint64_t dropped = 0;

  // Number of the read bytes that libevent may see; 0: the connection has ended; -1 with errno: none at present.
  ssize_t receive(int fd, const iovec* parts, ssize_t size) {
    for (ssize_t left = size; !refused && left > 0; ++parts) {
      size_t part = std::min<size_t>(left, parts->iov_len);
      if (auto refusal = requests.take(static_cast<const char*>(parts->iov_base), part)) {
        refused = true;
        // Responses keep the order of the requests, and an earlier request is still being processed.
        if (requests.completed() > answered) return 0;
        answer(fd, *refusal);
      }
      left -= part;
    }
    if (!refused) return size;
    dropped += size;
    if (dropped > kMostDropped) return 0;
    errno = EAGAIN;
    return -1;
  }

  // The same for a gRPC connection. Bytes after a refused message are dropped until the client has closed the connection
  // or uses it for another call: if it were closed at once, it would be reset before the client has read the reason.
  ssize_t receive_messages(int fd, const iovec* parts, ssize_t size) {
    for (ssize_t left = size; left > 0; ++parts) {
      size_t part = std::min<size_t>(left, parts->iov_len);
      messages.take(static_cast<const char*>(parts->iov_base), part);
      left -= part;
    }
    if (!messages.refused()) return size;
    if (!refused) reset(fd, *messages.refused());
    refused = true;
    dropped += size;
    if (messages.others() || dropped > kMostDropped) return 0;
    errno = EAGAIN;
    return -1;
  }

  // Reset a stream, and allow no new ones on its connection: the client reports RESOURCE_EXHAUSTED for the stream.
  static void reset(int fd, uint32_t stream) {
    constexpr unsigned char kCalm = 11;
    auto byte = [stream](int n) { return static_cast<unsigned char>(stream >> 8 * n); };
    std::string text = "a message is larger than " + std::to_string(message_limits.message) + " bytes, or " +
                       std::to_string(message_limits.compressed) + " compressed (tidal serve --grpc-max-message-size)";
    const unsigned char frames[] = {
        0, 0, 4, 3, 0, byte(3), byte(2), byte(1), byte(0), 0, 0, 0, kCalm,  // RST_STREAM
        0, 0, static_cast<unsigned char>(8 + text.size()), 7, 0, 0, 0, 0, 0,  // GOAWAY, with a text for the client's log
        byte(3), byte(2), byte(1), byte(0), 0, 0, 0, kCalm};
    text.insert(0, reinterpret_cast<const char*>(frames), sizeof frames);
    (void)!send(fd, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    shutdown(fd, SHUT_WR);
  }

  static void answer(int fd, const guard::Refusal& refusal) {
    const char* reason = refusal.status == 413   ? "Content Too Large"
                         : refusal.status == 415 ? "Unsupported Media Type"
                         : refusal.status == 431 ? "Request Header Fields Too Large"
                                                 : "Bad Request";
    std::string body = "{\"error\":\"";
    for (unsigned char c : refusal.message) body += c < ' ' || c > '~' || c == '"' || c == '\\' ? '?' : char(c);
    body += "\"}";
    std::string text = "HTTP/1.1 " + std::to_string(refusal.status) + " " + reason +
                       "\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
                       "\r\nConnection: close\r\n\r\n" + body;
    (void)!send(fd, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
};

std::atomic<Connection*> connections[kDescriptors];

void replace(int fd, Connection* connection) {
  if (fd >= 0 && static_cast<size_t>(fd) < kDescriptors) delete connections[fd].exchange(connection);
  else delete connection;
}

Connection* find(int fd) {
  return fd >= 0 && static_cast<size_t>(fd) < kDescriptors ? connections[fd].load() : nullptr;
}

int accepted(int fd) {
  if (fd >= 0 && limits.body) {
    if (static_cast<size_t>(fd) >= kDescriptors) {
      close(fd);
      errno = EMFILE;
      return -1;
    }
    replace(fd, new Connection);
  }
  return fd;
}

ssize_t received(int fd, const iovec* parts, ssize_t size) {
  Connection* connection = size > 0 ? find(fd) : nullptr;
  return connection ? connection->receive(fd, parts, size) : size;
}

// Threads of the server get stacks of the requested size, of which only the used part is resident. Its children, the
// processes of Python models, get neither the guard nor such stacks.
__attribute__((constructor)) void begin() {
  const char* body = std::getenv("TIDAL_HTTP_MAX_BODY");
  if (!body) return;
  process = getpid();
  limits.body = std::strtoull(body, nullptr, 10);
  limits.pieces = std::max<uint64_t>(kLeastPieces, limits.body / 1024);
  if (const char* stack = std::getenv("TIDAL_THREAD_STACK")) {
    pthread_attr_t attributes;
    if (pthread_getattr_default_np(&attributes) == 0) {
      if (pthread_attr_setstacksize(&attributes, std::strtoull(stack, nullptr, 10)) == 0)
        pthread_setattr_default_np(&attributes);
      pthread_attr_destroy(&attributes);
    }
  }
  const char* before = std::getenv("TIDAL_LD_PRELOAD");
  if (before && *before) setenv("LD_PRELOAD", before, 1);
  else unsetenv("LD_PRELOAD");
  if (const char* message = std::getenv("TIDAL_GRPC_MAX_MESSAGE")) {
    message_limits.message = std::strtoull(message, nullptr, 10);
    message_limits.compressed = message_limits.message / kDeflate;
  }
  for (const char* name : {"TIDAL_HTTP_MAX_BODY", "TIDAL_GRPC_MAX_MESSAGE", "TIDAL_THREAD_STACK", "TIDAL_LD_PRELOAD"})
    unsetenv(name);
}

// Read from a built library to check whether it was built from these sources.
__attribute__((used)) const char kSources[] = "tidal_http_guard_sources=" TIDAL_SOURCES;

}  // namespace

EXPORTED int accept4(int fd, sockaddr* address, socklen_t* size, int flags) {
  static auto original = next<decltype(accept4)>("accept4");
  // The processes of Python models would inherit the connection and keep it open after the server has closed it or died.
  return accepted(original(fd, address, size, limits.body ? flags | SOCK_CLOEXEC : flags));
}

EXPORTED int accept(int fd, sockaddr* address, socklen_t* size) { return accept4(fd, address, size, 0); }

EXPORTED ssize_t readv(int fd, const iovec* parts, int count) {
  static auto original = next<decltype(readv)>("readv");
  return received(fd, parts, original(fd, parts, count));
}

EXPORTED ssize_t read(int fd, void* data, size_t size) {
  static auto original = next<decltype(read)>("read");
  iovec part{data, size};
  return received(fd, &part, original(fd, data, size));
}

EXPORTED ssize_t recv(int fd, void* data, size_t size, int flags) {
  static auto original = next<decltype(recv)>("recv");
  iovec part{data, size};
  ssize_t got = original(fd, data, size, flags);
  return flags & MSG_PEEK ? got : received(fd, &part, got);
}

EXPORTED ssize_t recvmsg(int fd, msghdr* message, int flags) {
  static auto original = next<decltype(recvmsg)>("recvmsg");
  for (;;) {
    ssize_t size = original(fd, message, flags);
    Connection* connection = size > 0 && !(flags & (MSG_PEEK | MSG_ERRQUEUE)) ? find(fd) : nullptr;
    if (!connection) return size;
    ssize_t passed = connection->receive_messages(fd, message->msg_iov, size);
    // gRPC is notified of new data once (edge-triggered), so dropped data is read to its end here.
    if (passed >= 0) return passed;
  }
}

EXPORTED ssize_t writev(int fd, const iovec* parts, int count) {
  static auto original = next<decltype(writev)>("writev");
  if (Connection* connection = find(fd)) connection->answered = connection->requests.completed();
  return original(fd, parts, count);
}

EXPORTED int close(int fd) {
  static auto original = next<decltype(close)>("close");
  // A child that shares this memory until it calls exec closes its own descriptors.
  if (find(fd) && getpid() == process) replace(fd, nullptr);
  return original(fd);
}
