// The question to NCCL's RAS service, against stand-ins of it: one that answers, and those
// that do not.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "catch.hpp"
#include "nccl/ras.hpp"
#include "record/clock.hpp"

using namespace fr;
using namespace fr::nccl;

namespace {

constexpr u64 kPatience_ns = 20'000'000'000;

// Serves one connection after the other with `serve(fd)` on a port of its own.
class Server {
 public:
  Server(std::function<void(int)> serve, int family = AF_INET)
      : fd_(socket(family, SOCK_STREAM, 0)), serve_(std::move(serve)) {
    sockaddr_storage any{};
    any.ss_family = static_cast<sa_family_t>(family);
    socklen_t bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (family == AF_INET) {
      reinterpret_cast<sockaddr_in&>(any).sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    } else {
      reinterpret_cast<sockaddr_in6&>(any).sin6_addr = in6addr_loopback;
    }
    ok = fd_ >= 0 && bind(fd_, reinterpret_cast<sockaddr*>(&any), bytes) == 0 &&
         listen(fd_, 8) == 0 && getsockname(fd_, reinterpret_cast<sockaddr*>(&any), &bytes) == 0;
    port =
        std::to_string(ntohs(family == AF_INET ? reinterpret_cast<sockaddr_in&>(any).sin_port
                                               : reinterpret_cast<sockaddr_in6&>(any).sin6_port));
    thread_ = std::thread([this] {
      for (int c = 0; (c = accept(fd_, nullptr, nullptr)) >= 0;) {
        serve_(c);
        close(c);
      }
    });
  }
  ~Server() {
    shutdown(fd_, SHUT_RDWR);
    thread_.join();
    close(fd_);
  }
  bool ok = false;
  std::string port;

 private:
  int fd_;
  std::function<void(int)> serve_;
  std::thread thread_;
};

void say(int fd, const std::string& text) {
  [[maybe_unused]] const ssize_t n = send(fd, text.data(), text.size(), MSG_NOSIGNAL);
}

std::string read_request(int fd) {
  std::string all;
  char c = 0;
  while (all.find("STATUS\n") == std::string::npos && recv(fd, &c, 1, 0) == 1) {
    all += c;
  }
  return all;
}

// As NCCL does; knows_json: 2.28 and newer.
std::function<void(int)> answering(std::string report, bool knows_json = true,
                                   std::string* request = nullptr) {
  return [=](int fd) {
    const std::string asked = read_request(fd);
    if (request != nullptr) {
      *request = asked;
    }
    say(fd, "SERVER PROTOCOL 2\nOK\n");
    if (asked.find("SET FORMAT json") != std::string::npos) {
      say(fd, knows_json ? "OK\n" : "ERROR: Unknown command SET FORMAT json\n");
    }
    say(fd, report);
  };
}

// A thread that was started lives as long as the process.
Ras& new_ras() {
  return *new Ras;
}

const RasAnswer& ask(const std::string& address, bool json = true) {
  Ras& ras = new_ras();
  REQUIRE(ras.start(address.c_str()));
  ras.query(json, 0);
  const RasAnswer* answer = ras.take(kPatience_ns);
  REQUIRE(answer != nullptr);
  return *answer;
}

std::string text_of(const RasAnswer& a) {
  return {a.text, a.bytes};
}

}  // namespace

TEST_CASE("ras: an answer is taken as it is, without the lines before it") {
  std::string request;
  Server server(answering("{\"communicators\": []}\n", true, &request));
  REQUIRE(server.ok);
  const RasAnswer& a = ask("localhost:" + server.port);
  CHECK(text_of(a) == "{\"communicators\": []}\n");
  CHECK(std::string(a.error).empty());
  CHECK(a.json);
  CHECK(!a.cut);
  CHECK(a.asked_unix_ns != 0);
  CHECK(a.took_ns != 0);
  CHECK(request == "CLIENT PROTOCOL 2\nTIMEOUT 2\nSET FORMAT json\nVERBOSE STATUS\n");
}

TEST_CASE("ras: text where JSON is not known, or not wanted") {
  Server old(answering("Job summary\n", false));
  const RasAnswer& a = ask("127.0.0.1:" + old.port);
  CHECK(!a.json);
  CHECK(text_of(a) == "Job summary\n");
  Server modern(answering("Job summary\n"));
  const RasAnswer& b = ask("127.0.0.1:" + modern.port, false);
  CHECK(!b.json);
  CHECK(text_of(b) == "Job summary\n");
}

TEST_CASE("ras: IPv6 addresses") {
  Server server(answering("x\n"), AF_INET6);
  if (!server.ok) {
    WARN("no IPv6 here");
    return;
  }
  CHECK(text_of(ask("[::1]:" + server.port)) == "x\n");
}

TEST_CASE("ras: nobody listens") {
  std::string port;
  {
    Server gone(answering(""));
    port = gone.port;
  }
  CHECK(std::string(ask("127.0.0.1:" + port).error).find("cannot connect: ") == 0);
  CHECK(!std::string(ask("no-such-host.invalid:1").error).empty());
}

TEST_CASE("ras: a silent service holds nobody up") {
  Server server([](int fd) {
    char c = 0;
    while (recv(fd, &c, 1, 0) == 1) {  // until the other side is gone
    }
  });
  Ras& ras = new_ras();
  REQUIRE(ras.start(("127.0.0.1:" + server.port).c_str()));
  CHECK(ras.take(0) == nullptr);  // not asked
  ras.query(true, 0);
  const u64 begun = monotonic_ns();
  const RasAnswer* none = ras.take(20'000'000);
  CHECK(std::string(none->error) == "no answer yet");
  CHECK(none->took_ns != 0);
  ras.query(true, 0);  // one is under way
  const RasAnswer* late = ras.take(kPatience_ns);
  CHECK(std::string(late->error) == "no answer");
  CHECK(late->bytes == 0);
  CHECK(monotonic_ns() - begun < 10'000'000'000);
}

TEST_CASE("ras: garbage is told, not kept") {
  Server server([](int fd) {
    read_request(fd);
    say(fd, "HTTP/1.1 400 \x01\xff bad\r\n\r\nmore");
  });
  const RasAnswer& a = ask("127.0.0.1:" + server.port);
  CHECK(a.bytes == 0);
  CHECK(std::string(a.error) == "not the service of NCCL: it says \"HTTP/1.1 400 ?? bad\"");
}

TEST_CASE("ras: what is too long is cut, and flagged") {
  Server server([](int fd) {
    read_request(fd);
    say(fd, "SERVER PROTOCOL 2\nOK\nOK\n");
    const std::string block(1 << 16, 'y');
    for (int i = 0; i < 64; ++i) {
      say(fd, block);
    }
  });
  const RasAnswer& a = ask("127.0.0.1:" + server.port);
  CHECK(a.cut);
  CHECK(a.bytes > kRasBytes - 64);
  CHECK(a.bytes <= kRasBytes);
}

TEST_CASE("ras: a service that closes early") {
  Server at_once([](int) {});
  CHECK(!std::string(ask("127.0.0.1:" + at_once.port).error).empty());
  Server after_ok([](int fd) {
    read_request(fd);
    say(fd, "SERVER PROTOCOL 2\nOK\n");
  });
  CHECK(std::string(ask("127.0.0.1:" + after_ok.port).error) ==
        "the connection was closed without a report");
}

TEST_CASE("ras: asked again only after a while") {
  int times = 0;
  Server server([&](int fd) {
    ++times;
    answering("x\n")(fd);
  });
  Ras& ras = new_ras();
  REQUIRE(ras.start(("127.0.0.1:" + server.port).c_str()));
  for (int i = 0; i < 3; ++i) {
    ras.query(true, 3'600'000'000'000);
    ras.take(kPatience_ns);
  }
  CHECK(times == 1);
  ras.query(true, 0);
  ras.take(kPatience_ns);
  CHECK(times == 2);
}
