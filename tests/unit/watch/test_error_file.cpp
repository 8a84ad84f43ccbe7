#include <cstring>
#include <nlohmann/json.hpp>

#include "catch.hpp"
#include "support.hpp"
#include "watch/error_file.hpp"

using namespace fr;
using namespace fr::test;

namespace {

void set_exit(Header& h, const char* kind, const char* type, const char* message) {
  std::strcpy(h.exit.kind, kind);
  std::strcpy(h.exit.type, type);
  std::strcpy(h.exit.message, message);
  h.exit.time_unix_ns = 1'000'000'000'000;
  h.exit.ready = 1;
}

std::string described(Rig& rig) {
  char text[2048];
  describe_end(rig.view, text, sizeof text);
  return text;
}

}  // namespace

TEST_CASE("error file: hostile texts make JSON of one message") {
  char out[4096];
  const char* hostile = "a \"quoted\" \\ back\tslash \x1b[31m \xff end";
  const std::size_t n = format_error_file(out, sizeof out, hostile, "one\ntwo \"x\"", 1234567890);
  const auto json = nlohmann::json::parse(std::string(out, n));
  CHECK(json["message"]["message"] == "a \"quoted\" \\ back slash  [31m   end");
  CHECK(json["message"]["extraInfo"]["py_callstack"] == "one\ntwo \"x\"");
  CHECK(json["message"]["extraInfo"]["timestamp"] == "1234567890");
}

TEST_CASE("error file: what does not fit is not written") {
  char out[64];
  CHECK(format_error_file(out, sizeof out, "message", "lines", 1) == 0);
}

TEST_CASE("error file: how a process ended, and with what in flight") {
  Rig rig;
  std::strcpy(rig.header().host, "n1");
  rig.header().rank = 2;
  CHECK(described(rig).find("rank 2 (host n1, pid ") == 0);
  CHECK(described(rig).find("ended with exit status 0") != std::string::npos);
  rig.collective(rig.group("default_pg"));
  set_exit(rig.header(), "signal", "SIGTERM", "sent by process 4 (torchrun)");
  CHECK(described(rig).find("was ended by SIGTERM, sent by process 4 (torchrun), with ") !=
        std::string::npos);
  CHECK(described(rig).ends_with(" in flight"));
  set_exit(rig.header(), "exception", "ValueError", "bad batch");
  CHECK(described(rig).find("ended with ValueError: bad batch") != std::string::npos);
  set_exit(rig.header(), "crash", "SIGSEGV", "address 0x0");
  CHECK(described(rig).find("crashed with SIGSEGV: address 0x0") != std::string::npos);
}

TEST_CASE("error file: who only follows others is never the earliest") {
  Rig rig;
  Header& h = rig.header();
  const u64 now_ns = 2'000'500'000'000;
  CHECK(time_of_end_s(h, now_ns) == 2000);
  set_exit(h, "exception", "ValueError", "");
  CHECK(time_of_end_s(h, now_ns) == 1000);
  h.failed = 1;  // the exception came from an operation with a peer that is gone
  CHECK(time_of_end_s(h, now_ns) == 2002);
  set_exit(h, "crash", "SIGSEGV", "");
  CHECK(time_of_end_s(h, now_ns) == 1000);
  h.failed = 0;
  set_exit(h, "signal", "SIGTERM", "");
  CHECK(time_of_end_s(h, now_ns) == 2002);
}
