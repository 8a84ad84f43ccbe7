// test_pickle.cpp - the pickle reader: protocols, refusals, cut files.
#include "builder.hpp"
#include "catch.hpp"
#include "input/pickle.hpp"
#include "report/pickle_writer.hpp"

using namespace frtrace;
using frtest::bytes_of;
using pickle::Type;

namespace {

using namespace std::string_literals;

struct Parsed {
  pickle::Arena arena;
  pickle::Value root;
  std::string why;
  bool good = false;
  std::string text;
  explicit Parsed(std::string in) : text(std::move(in)) {
    good = pickle::parse(bytes_of(text), arena, root, why);
  }
};

// A value as Python would show it.
std::string show(const pickle::Value& v, int depth = 0) {
  if (depth > 8) {
    return "...";
  }
  std::string out;
  switch (v.type) {
    case Type::kNone:
      return "None";
    case Type::kBool:
      return v.i != 0 ? "True" : "False";
    case Type::kInt:
      return std::to_string(v.i);
    case Type::kFloat:
      return std::to_string(v.f);
    case Type::kString:
      return "'" + std::string(v.text()) + "'";
    case Type::kBytes:
      return "b'" + std::string(v.text()) + "'";
    case Type::kDict:
      for (std::size_t i = 0; i + 1 < pickle::pairs(v).size(); i += 2) {
        out += (i != 0 ? ", " : "") + show(pickle::pairs(v)[i], depth + 1) + ": " +
               show(pickle::pairs(v)[i + 1], depth + 1);
      }
      return "{" + out + "}";
    default:
      for (const pickle::Value& item : pickle::items(v)) {
        out += (out.empty() ? "" : ", ") + show(item, depth + 1);
      }
      return v.type == Type::kTuple ? "(" + out + ")"
             : v.type == Type::kSet ? "set(" + out + ")"
                                    : "[" + out + "]";
  }
}

std::string read(const std::string& in) {
  const Parsed p(in);
  return p.good ? show(p.root) : "! " + p.why;
}

}  // namespace

TEST_CASE("pickle: every data opcode of protocols 0 to 5") {
  const std::pair<std::string, std::string> cases[] = {
      {"N.", "None"},
      {"I01\n.", "True"},
      {"I00\n.", "False"},
      {"I-17\n.", "-17"},
      {"I5\r\n.", "5"},
      {"L123456789012L\n.", "123456789012"},
      {"L99999999999999999999L\n.", std::to_string(INT64_MAX)},
      {"F2.5\n.", "2.500000"},
      {"S'a\\'b\\n\\x41'\n.", "'a'b\nA'"},
      {"Vabc\\u00e9\n.", "'abc\xc3\xa9'"},
      {"K\x07.", "7"},
      {"M\x01\x02.", "513"},
      {"J\xff\xff\xff\xff.", "-1"},
      {"G\x40\x04\0\0\0\0\0\0."s, "2.500000"},
      {"\x80\x02\x88.", "True"},
      {"\x80\x02\x89.", "False"},
      {"\x80\x02\x8a\x00."s, "0"},
      {"\x80\x02\x8a\x02\xff\x7f.", "32767"},
      {"\x80\x02\x8a\x01\x80.", "-128"},
      {"\x80\x02\x8a\x09\0\0\0\0\0\0\0\0\x01."s, std::to_string(INT64_MAX)},
      {"\x80\x02\x8b\x02\0\0\0\x05\x00."s, "5"},
      {"T\x02\0\0\0ab."s, "'ab'"},
      {"U\x02"
       "ab.",
       "'ab'"},
      {"X\x02\0\0\0ab."s, "'ab'"},
      {"\x8c\x02"
       "ab.",
       "'ab'"},
      {"\x8d\x02\0\0\0\0\0\0\0ab."s, "'ab'"},
      {"B\x02\0\0\0ab."s, "b'ab'"},
      {"C\x02"
       "ab.",
       "b'ab'"},
      {"\x8e\x02\0\0\0\0\0\0\0ab."s, "b'ab'"},
      {"\x96\x02\0\0\0\0\0\0\0ab."s, "b'ab'"},
      {").", "()"},
      {"].", "[]"},
      {"}.", "{}"},
      {"\x8f.", "set()"},
      {"K\x01\x85.", "(1)"},
      {"K\x01K\x02\x86.", "(1, 2)"},
      {"K\x01K\x02K\x03\x87.", "(1, 2, 3)"},
      {"(K\x01K\x02K\x03K\x04t.", "(1, 2, 3, 4)"},
      {"(K\x01K\x02l.", "[1, 2]"},
      {"(K\x01K\x02"
       "d.",
       "{1: 2}"},
      {"(K\x01\x91.", "set(1)"},
      {"\x8f(K\x01K\x02\x90.", "set(1, 2)"},
      {"]K\x01"
       "aK\x02"
       "a.",
       "[1, 2]"},
      {"](K\x01K\x02"
       "e(K\x03"
       "e.",
       "[1, 2, 3]"},
      {"}K\x01K\x02s.", "{1: 2}"},
      {"}(K\x01K\x02u.", "{1: 2}"},
      {"K\x01K\x02"
       "0.",
       "1"},
      {"K\x01(K\x02"
       "1.",
       "1"},
      {"K\x01(0.", "1"},
      {"](K\x01"
       "2e.",
       "[1, 1]"},
      {"U\x01"
       "ap0\n0g0\n.",
       "'a'"},
      {"U\x01"
       "aq\x05"
       "0h\x05.",
       "'a'"},
      {"U\x01"
       "ar\x05\0\0\0"
       "0j\x05\0\0\0."s,
       "'a'"},
      {"\x80\x04\x95\x0a\0\0\0\0\0\0\0\x8c\x01"
       "a\x94"
       "0h\x00."s,
       "'a'"},
      // The output of pickle.dumps([{"a": 1}, {"a": 2}]) under protocols 0, 2 and 4.
      {"(lp0\n(dp1\nVa\np2\nI1\nsa(dp3\ng2\nI2\nsa.", "[{'a': 1}, {'a': 2}]"},
      {"\x80\x02]q\x00(}q\x01X\x01\0\0\0aq\x02K\x01s}q\x03h\x02K\x02se."s, "[{'a': 1}, {'a': 2}]"},
      {"\x80\x04\x95\x14\0\0\0\0\0\0\0]\x94(}\x94\x8c\x01"
       "a\x94K\x01s}\x94h\x02K\x02se."s,
       "[{'a': 1}, {'a': 2}]"},
  };
  for (const auto& [in, out] : cases) {
    INFO(out);
    CHECK(read(in) == out);
  }
}

TEST_CASE("pickle: what would construct or call is refused, and named") {
  const std::pair<std::string, const char*> cases[] = {
      {"cos\nsystem\n(S'echo'\ntR.", "GLOBAL"},
      {"\x80\x04\x8c\x02os\x8c\x06system\x93.", "STACK_GLOBAL"},
      {"K\x01)R.", "REDUCE"},
      {"K\x01}b.", "BUILD"},
      {"(ios\nsystem\n.", "INST"},
      {"(K\x01o.", "OBJ"},
      {"K\x01)\x81.", "NEWOBJ"},
      {"K\x01)}\x92.", "NEWOBJ_EX"},
      {"Pid\n.", "PERSID"},
      {"K\x01Q.", "BINPERSID"},
      {"\x82\x01.", "EXT1"},
      {"\x83\x01\x02.", "EXT2"},
      {"\x84\x01\x02\x03\x04.", "EXT4"},
      {"\x97.", "NEXT_BUFFER"},
      {"K\x01\x98.", "READONLY_BUFFER"},
  };
  for (const auto& [in, name] : cases) {
    const std::string out = read(in);
    INFO(out);
    CHECK(out.find("! hostile or unrecognised pickle") == 0);
    CHECK(out.find(std::string("(") + name + ")") != std::string::npos);
  }
}

TEST_CASE("pickle: claims are checked before they are believed") {
  // Lengths of gigabytes and exabytes in a file of a few bytes.
  CHECK(read("X\xff\xff\xff\xff"
             "a.")
            .find("! truncated") == 0);
  CHECK(read("\x8d\xff\xff\xff\xff\xff\xff\xff\x7f"
             "a.")
            .find("! truncated") == 0);
  CHECK(read("\x8b\xff\xff\xff\x7f"
             "a.")
            .find("! truncated") == 0);
  CHECK(read("\x8b\xff\xff\xff\xff"
             "a.")
            .find("! truncated") == 0);
  CHECK(read("K\x01r\xff\xff\xff\xff.").find("! damaged: a memo beyond reason") == 0);
  CHECK(read("K\x01p99999999999\n.").find("! damaged: a memo beyond reason") == 0);
  CHECK(read("K\x01p-1\n.").find("! damaged: a memo beyond reason") == 0);
  CHECK(read("h\x01.").find("! damaged: an unknown memo") == 0);
  CHECK(read("K\x01q\x03"
             "0h\x02.")
            .find("! damaged: an unknown memo") == 0);
  CHECK(read(std::string(1000, '(') + ".").find("! hostile or unrecognised pickle: nested") == 0);
  CHECK(read("\x80\x09.").find("! a pickle protocol newer") == 0);
}

TEST_CASE("pickle: nonsense is an error, never a crash") {
  for (const char* in : {".",
                         "0.",
                         "1.",
                         "2.",
                         "a.",
                         "e.",
                         "s.",
                         "u.",
                         "d.",
                         "t.",
                         "l.",
                         "q\x01.",
                         "\x85.",
                         "\x87.",
                         "(.",
                         "((.",
                         "K\x01"
                         "a.",
                         "](K\x01.",
                         "}(K\x01u.",
                         "}K\x01s.",
                         "(K\x01"
                         "d.",
                         "K\x01(q\x00.",
                         "(a.",
                         "(K\x01s.",
                         "((\x85.",
                         "\x94.",
                         "\x90.",
                         "\x91.",
                         "Sab\n.",
                         "S'\n.",
                         "Ixx\n.",
                         "I\n.",
                         "F\n.",
                         "Lx\n.",
                         "g\n.",
                         "\x01.",
                         "\xff.",
                         ""}) {
    const std::string out = read(in);
    INFO(in << " -> " << out);
    CHECK((out.front() == '!' || std::string(in) == "F\n."));
  }
}

TEST_CASE("pickle: cut at any byte, or any byte changed") {
  PickleWriter p;
  p.open_dict();
  p.text("entries");
  p.open_list();
  for (int i = 0; i < 3; ++i) {
    p.open_dict();
    for (const auto& [key, value] : {std::pair{"record_id", i}, {"numel", 300}, {"far", 1 << 30}}) {
      p.text(key);
      p.number(value);
    }
    p.text("none");
    p.none();
    p.text("yes");
    p.boolean(true);
    p.text("pair");
    p.text("a");
    p.text("b");
    p.pair();
    p.close_dict();
  }
  p.close_list();
  p.close_dict();
  const std::string text = p.finish();
  REQUIRE(Parsed(text).good);
  for (std::size_t n = 0; n < text.size(); ++n) {
    CHECK_FALSE(Parsed(text.substr(0, n)).good);
  }
  for (std::size_t n = 0; n < text.size(); ++n) {
    for (int v = 0; v < 256; ++v) {
      std::string changed = text;
      changed[n] = static_cast<char>(v);
      const Parsed parsed(changed);
      if (parsed.good) {
        (void)show(parsed.root);
      }
    }
  }
}

TEST_CASE("pickle: shared is shared, a cycle ends, memory follows the file") {
  // One dict named four thousand times stays one.
  std::string in =
      "\x80\x02}q\x00(U\x01"
      "aK\x01u0]("s;
  for (int i = 0; i < 4000; ++i) {
    in += "h";
    in += '\0';
  }
  in += "e.";
  const Parsed p(in);
  REQUIRE(p.good);
  const auto all = pickle::items(p.root);
  REQUIRE(all.size() == 4000);
  CHECK(all.front().node == all.back().node);
  CHECK(p.arena.bytes() < 64 * in.size() + (1u << 19));

  const Parsed cycle(
      "]q\x00h\x00"
      "a."s);
  REQUIRE(cycle.good);
  CHECK(pickle::items(cycle.root)[0].node == cycle.root.node);

  // Doubling lists of lists: 2^40 leaves in 400 bytes, all of them references.
  std::string bomb =
      "]q\x00"
      "0"s;
  for (int i = 1; i < 40; ++i) {
    bomb += "](h"s + static_cast<char>(i - 1) + "h" + static_cast<char>(i - 1) + "eq" +
            static_cast<char>(i) + "0";
  }
  bomb += "h\x27.";
  const Parsed b(bomb);
  CHECK(b.good);
  CHECK(b.arena.bytes() < (1u << 20));
}

TEST_CASE("pickle: find takes the last of equal keys") {
  const Parsed p(
      "}(U\x01"
      "aK\x01U\x01"
      "bK\x02U\x01"
      "aK\x03u.");
  REQUIRE(p.good);
  CHECK(pickle::find(p.root, "a")->i == 3);
  CHECK(pickle::find(p.root, "b")->i == 2);
  CHECK(pickle::find(p.root, "c") == nullptr);
  CHECK(pickle::find(pickle::Value{}, "a") == nullptr);
}
