// secrets.cpp - names that are followed by a secret, words that are one.
#include "format/secrets.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace fr {
namespace {

// ---------------------------------------------------------------- characters

constexpr std::size_t kNone = std::string_view::npos;
constexpr std::string_view kMask = "***";

constexpr bool is_upper(char c) noexcept {
  return c >= 'A' && c <= 'Z';
}
constexpr bool is_lower(char c) noexcept {
  return c >= 'a' && c <= 'z';
}
constexpr bool is_digit(char c) noexcept {
  return c >= '0' && c <= '9';
}
constexpr bool is_alnum(char c) noexcept {
  return is_upper(c) || is_lower(c) || is_digit(c);
}
bool is_space(char c) noexcept {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\0';
}
bool is_quote(char c) noexcept {
  return c == '\'' || c == '"' || c == '`';
}
// Characters of a word: an identifier, an option, a path, base64.
constexpr std::array<bool, 256> kWord = [] {
  std::array<bool, 256> out{};
  for (std::size_t c = 0; c < out.size(); ++c) {
    const char i = static_cast<char>(c);
    out[c] = c >= 0x80 || is_alnum(i) || std::string_view("_-./+~%").find(i) != kNone;
  }
  return out;
}();
bool is_word(char c) noexcept {
  return kWord[static_cast<unsigned char>(c)];
}
char lower(char c) noexcept {
  return is_upper(c) ? static_cast<char>(c + ('a' - 'A')) : c;
}

bool same(std::string_view a, std::string_view lower_case) noexcept {
  return a.size() == lower_case.size() && std::equal(a.begin(), a.end(), lower_case.begin(),
                                                     [](char x, char y) { return lower(x) == y; });
}

template <std::size_t N>
bool is_one_of(std::string_view word, const std::string_view (&list)[N]) noexcept {
  return std::any_of(std::begin(list), std::end(list),
                     [&](std::string_view one) { return same(word, one); });
}

// ---------------------------------------------------------------- names

constexpr std::string_view kFullWithin[] = {"passw",      "passphrase", "secret",
                                            "credential", "bearer",     "jwt",
                                            "apikey",     "cookie",     "authorization"};
constexpr std::string_view kFullPart[] = {"cred", "creds", "dsn", "pat", "pw"};
constexpr std::string_view kWeakPart[] = {"token", "tokens", "auth", "pwd", "sig", "signature"};
// Endings that name a file or a place, not the secret itself.
constexpr std::string_view kHarmlessEnd[] = {"file", "path", "dir", "py",  "cpp",
                                             "so",   "json", "txt", "yml", "yaml"};
// These end what is counted or described: "token_ids", "key_dim".
constexpr std::string_view kWeakHarmlessEnd[] = {
    "id",   "ids",  "type", "len", "length", "count", "counts", "size",  "num",   "dim",
    "dims", "name", "max",  "min", "limit",  "idx",   "index",  "error", "errors"};

bool within(std::string_view word, std::string_view part) noexcept {
  for (std::size_t i = 0; i + part.size() <= word.size(); ++i) {
    if (same(word.substr(i, part.size()), part)) {
      return true;
    }
  }
  return false;
}

// The next part of a name from `at`: "db_userPass2" is db, user, Pass.
std::string_view next_part(std::string_view name, std::size_t& at) noexcept {
  while (at < name.size() && !is_upper(name[at]) && !is_lower(name[at])) {
    ++at;
  }
  const std::size_t begin = at;
  while (at < name.size() && (is_upper(name[at]) || is_lower(name[at])) &&
         !(at > begin && is_upper(name[at]) && is_lower(name[at - 1]))) {
    ++at;
  }
  return name.substr(begin, at - begin);
}

constexpr std::size_t kMaxName = 64;  // bytes; nobody gives an option or a header a longer one

}  // namespace

Secrecy secrecy_of(std::string_view name) noexcept {
  if (name.size() > kMaxName) {
    return Secrecy::kNone;
  }
  Secrecy out = Secrecy::kNone;
  std::string_view last;
  std::size_t parts = 0;
  for (std::size_t at = 0;;) {
    const std::string_view part = next_part(name, at);
    if (part.empty()) {
      break;
    }
    last = part;
    ++parts;
    const bool full =
        is_one_of(part, kFullPart) || std::any_of(std::begin(kFullWithin), std::end(kFullWithin),
                                                  [&](auto one) { return within(part, one); });
    out = std::max(out, full                         ? Secrecy::kFull
                        : is_one_of(part, kWeakPart) ? Secrecy::kWeak
                                                     : Secrecy::kNone);
  }
  if (is_one_of(last, kHarmlessEnd) ||
      (out == Secrecy::kWeak && is_one_of(last, kWeakHarmlessEnd))) {
    return Secrecy::kNone;
  }
  if (out == Secrecy::kNone && (same(last, "key") || same(last, "keys"))) {
    return parts == 1 ? Secrecy::kNone : Secrecy::kWeak;  // of a store, a table, a layer
  }
  const bool ends_in_pass = last.size() >= 4 && same(last.substr(last.size() - 4), "pass") &&
                            !same(last, "bypass") && !same(last, "compass");
  return ends_in_pass ? std::max(out, Secrecy::kWeak) : out;
}

namespace {

// ---------------------------------------------------------------- words that are keys

struct Prefix {
  std::string_view text;
  std::size_t rest;  // characters that follow at least
  bool digit;        // one of them is a digit: the prefix alone begins ordinary words, too
};
constexpr Prefix kPrefixes[] = {
    {"AKIA", 12, false},     {"ASIA", 12, true},     {"ghp_", 10, false},
    {"gho_", 10, false},     {"ghu_", 10, false},    {"ghs_", 10, false},
    {"ghr_", 10, false},     {"glpat-", 8, false},   {"github_pat_", 8, false},
    {"hf_", 16, true},       {"sk-", 16, true},      {"sk_live_", 8, false},
    {"rk_live_", 8, false},  {"sk_test_", 8, false}, {"xoxb-", 6, false},
    {"xoxp-", 6, false},     {"xoxa-", 6, false},    {"xoxs-", 6, false},
    {"xoxr-", 6, false},     {"xapp-", 6, false},    {"eyJ", 12, false},
    {"AIza", 20, false},     {"ya29.", 10, false},   {"npm_", 20, true},
    {"pypi-AgE", 10, false}, {"nvapi-", 10, false},  {"gsk_", 16, true},
    {"dop_v1_", 10, false},  {"SG.", 16, true},      {"r8_", 20, true},
    {"wandb_v1_", 10, false}};

constexpr std::size_t kShortestKey = 10;  // characters, prefix included

// Notes are masked when they are made: most words are passed over by their first character.
constexpr std::array<bool, 256> kBeginsKey = [] {
  std::array<bool, 256> out{};
  for (const Prefix& p : kPrefixes) {
    out[static_cast<unsigned char>(p.text.front())] = true;
  }
  return out;
}();

bool has_key_prefix(std::string_view word) noexcept {
  return word.size() >= kShortestKey && kBeginsKey[static_cast<unsigned char>(word.front())] &&
         std::any_of(std::begin(kPrefixes), std::end(kPrefixes), [&](const Prefix& p) {
           if (!word.starts_with(p.text) || word.size() - p.text.size() < p.rest) {
             return false;
           }
           const std::string_view rest = word.substr(p.text.size());
           return !p.digit || std::any_of(rest.begin(), rest.end(), is_digit);
         });
}

// Long, and upper case, lower case and digits alternate as nobody writes them. Hexadecimal words
// are hashes and ids far more often than keys; _Z... is a C++ symbol.
bool looks_random(std::string_view word) noexcept {
  constexpr std::size_t kShortest = 24;  // characters: 140 bits in base64
  constexpr std::size_t kSegment = 8;    // between '-', '_', '/': names have shorter ones
  if (word.size() < kShortest || word.starts_with("_Z")) {
    return false;
  }
  std::size_t upper = 0, small = 0, digits = 0, others = 0, changes = 0;
  for (std::size_t i = 0; i < word.size(); ++i) {
    const char c = word[i];
    const std::size_t kind = is_upper(c) ? 1u : is_lower(c) ? 2u : is_digit(c) ? 3u : 0u;
    ++(kind == 1 ? upper : kind == 2 ? small : kind == 3 ? digits : others);
    if (i > 0 && kind != 0 && is_alnum(word[i - 1])) {
      const char b = word[i - 1];
      changes += kind != (is_upper(b) ? 1u : is_lower(b) ? 2u : 3u) ? 1 : 0;
    }
  }
  // 62 % of the steps change the kind in random base64, below 35 % in CamelCase words with numbers.
  return upper >= 2 && small >= 2 && digits >= 2 && word.size() / (others + 1) >= kSegment &&
         changes * 100 >= 40 * (word.size() - others);
}

// ---------------------------------------------------------------- the text

constexpr std::string_view kHeaders[] = {"authorization", "proxy-authorization", "cookie",
                                         "set-cookie", "x-api-key"};
constexpr std::string_view kConstants[] = {"none", "null", "true", "false"};
constexpr std::string_view kUserOptions[] = {"-u", "--user", "--proxy-user"};

// Reads front to back; what is written never overtakes what is read.
class Masker {
 public:
  Masker(char* text, std::size_t bytes) noexcept : text_(text), bytes_(bytes) {}

  std::size_t run() noexcept {
    while (at_ < bytes_) {
      if (is_word(text_[at_])) {
        word();
      } else {
        keep(at_ + 1);
      }
    }
    return out_;
  }

 private:
  std::string_view view(std::size_t from, std::size_t to) const noexcept {
    return {text_ + from, to - from};
  }
  char char_at(std::size_t i) const noexcept { return i < bytes_ ? text_[i] : '\0'; }

  void keep(std::size_t to) noexcept {
    if (to > at_) {
      before_ = text_[to - 1];
      std::memmove(text_ + out_, text_ + at_, to - at_);
      out_ += to - at_;
      at_ = to;
    }
  }
  void mask(std::size_t to) noexcept {
    if (to > at_) {
      before_ = text_[to - 1];
      const std::size_t n = std::min(to - at_, kMask.size());
      std::memcpy(text_ + out_, kMask.data(), n);
      out_ += n;
      at_ = to;
    }
  }

  std::size_t word_end(std::size_t from) const noexcept {
    while (from < bytes_ && is_word(text_[from])) {
      ++from;
    }
    return from;
  }
  std::size_t after_blanks(std::size_t from) const noexcept {
    while (from < bytes_ && (text_[from] == ' ' || text_[from] == '\t')) {
      ++from;
    }
    return from;
  }
  std::size_t closing(char quote, std::size_t from) const noexcept {
    while (from < bytes_ && text_[from] != quote) {
      from += text_[from] == '\\' ? 2 : 1;
    }
    return std::min(from, bytes_);
  }

  // at_ is the begin of a word.
  void word() noexcept {
    const std::size_t begin = at_, end = word_end(begin);
    const std::string_view word = view(begin, end);
    const char before = begin > 0 ? before_ : ' ';
    if (view(end, std::min(bytes_, end + 3)) == "://") {
      keep(end + 3);
      authority();
      return;
    }
    if (same(word, "bearer") && char_at(end) == ' ' && is_word(char_at(after_blanks(end)))) {
      keep(after_blanks(end));
      const std::size_t to = word_end(at_);
      constexpr std::size_t kShortest = 6;  // of a token
      to - at_ >= kShortest ? mask(to) : keep(to);
      return;
    }
    const Secrecy secrecy = may_be_name(word, end) ? secrecy_of(word) : Secrecy::kNone;
    if (secrecy != Secrecy::kNone && named_value(word, secrecy, before, end)) {
      return;
    }
    if (word.front() == '-' && is_one_of(word, kUserOptions)) {
      keep(end);
      credentials_after_option();
      return;
    }
    if (char_at(end) == ':' && user_and_password(end)) {
      return;
    }
    plain(word, end);
  }

  bool may_be_name(std::string_view word, std::size_t end) const noexcept {
    const char sign = char_at(after_blanks(end));
    return (sign == '=' || sign == ':' || is_quote(sign) || word.front() == '-') &&
           word.find('/') == std::string_view::npos;
  }

  // A word that has no secret name: is it, or a piece of it, a key?
  void plain(std::string_view word, std::size_t end) noexcept {
    const bool path = word.front() == '/' || word.front() == '.' || word.front() == '~';
    const std::size_t dashes = std::min(word.find_first_not_of('-'), word.size());
    if (!path && (has_key_prefix(word.substr(dashes)) || looks_random(word.substr(dashes)))) {
      mask(end);
      return;
    }
    while (at_ < end) {
      const std::size_t slash = std::min(view(at_, end).find('/'), end - at_) + at_;
      const std::string_view piece = view(at_, slash);
      has_key_prefix(piece) || looks_random(piece) ? mask(slash) : keep(slash);
      keep(std::min(slash + 1, end));
    }
  }

  // After a secret name at `end`: true when a value followed, which is masked now.
  bool named_value(std::string_view name, Secrecy secrecy, char before, std::size_t end) noexcept {
    const bool quoted = is_quote(before) && char_at(end) == before;
    std::size_t p = after_blanks(quoted ? end + 1 : end);
    if (quoted && char_at(p) == ']') {  // environ["TOKEN"] = "x"
      p = after_blanks(p + 1);
    }
    const char sign = char_at(p);
    if ((sign == '=' && char_at(p + 1) != '=') || sign == ':') {
      p = after_blanks(p + 1);
      keep(p);
      value(secrecy, sign == ':' && is_one_of(name, kHeaders), quoted ? ' ' : before);
      return true;
    }
    if (quoted && sign == ',') {  // ('token', 'x'), ["--password", "x"]
      p = after_blanks(p + 1);
      if (is_quote(char_at(p)) || (char_at(p) == 'b' && is_quote(char_at(p + 1)))) {
        keep(p);
        value(secrecy, false, ' ');
        return true;
      }
      return false;
    }
    if (!quoted && name.front() == '-' && p > end && !is_space(sign) && sign != '-') {
      keep(p);
      value(secrecy, false, before);
      return true;
    }
    return false;
  }

  // At the begin of a value; `enclosing`: the quote in which name and value lie together.
  void value(Secrecy secrecy, bool header, char enclosing) noexcept {
    if ((char_at(at_) == 'b' || char_at(at_) == 'u') && is_quote(char_at(at_ + 1))) {
      keep(at_ + 1);
    }
    if (is_quote(char_at(at_)) && char_at(at_) != enclosing) {
      const char quote = char_at(at_);
      keep(at_ + 1);
      masked(closing(quote, at_), secrecy);
      return;
    }
    std::size_t to = at_;
    for (; to < bytes_; ++to) {
      const char c = text_[to];
      const char next = char_at(to + 1);
      if (is_quote(c) || c == '\n' || c == '\0' ||
          (c == ',' && (is_space(next) || is_quote(next)))) {
        break;
      }
      if (!header && (is_space(c) || c == '&' || c == ';')) {
        break;
      }
    }
    while (to > at_ && (text_[to - 1] == ')' || text_[to - 1] == ']' || text_[to - 1] == '}')) {
      --to;
    }
    masked(to, secrecy);
  }

  void masked(std::size_t to, Secrecy secrecy) noexcept {
    const std::string_view v = view(at_, to);
    const bool number = v.find_first_not_of("0123456789.,-+") == std::string_view::npos;
    const bool path =
        v.starts_with("/") || v.starts_with("./") || v.starts_with("../") || v.starts_with("~/");
    const bool shown = is_one_of(v, kConstants) ||
                       (secrecy != Secrecy::kFull && (number || path)) ||
                       (v.size() == 1 && !is_alnum(v.front()));
    shown ? keep(to) : mask(to);
  }

  // Behind "scheme://": user:password@host. In a text that was cut before its '@', the password is
  // recognised by not being a port.
  void authority() noexcept {
    std::size_t end = at_, at_sign = kNone, colon = kNone;
    for (; end < bytes_; ++end) {
      const char c = text_[end];
      if (c == '/' || c == '?' || c == '#' || is_space(c) || is_quote(c) || c == '<' || c == '>') {
        break;
      }
      at_sign = c == '@' ? end : at_sign;
      colon = c == ':' && colon == kNone ? end : colon;
    }
    constexpr std::size_t kLongestUser = 16;  // characters: a longer one alone is a token
    if (at_sign != kNone && colon + 1 < at_sign) {
      keep(colon + 1);
      mask(at_sign);
    } else if (at_sign != kNone && std::min(colon, at_sign) - at_ > kLongestUser) {
      mask(at_sign);
    } else if (at_sign == kNone && end == bytes_ && colon != kNone && text_[at_] != '[' &&
               view(colon + 1, end).find_first_not_of("0123456789.,)]}") !=
                   std::string_view::npos) {
      keep(colon + 1);
      mask(end);
    }
  }

  // "name:password@host" without a scheme; `colon` ends the word at at_.
  bool user_and_password(std::size_t colon) noexcept {
    constexpr std::size_t kLongest = 128;  // bytes of a password; bounds what is read twice
    const std::size_t limit = std::min(bytes_, colon + 1 + kLongest);
    bool digits = true;
    for (std::size_t i = colon + 1; i < limit; ++i) {
      const char c = text_[i];
      if (c == '@') {
        if (i == colon + 1 || digits || !(is_alnum(char_at(i + 1)) || char_at(i + 1) == '[')) {
          return false;
        }
        keep(colon + 1);
        mask(i);
        return true;
      }
      if (is_space(c) || is_quote(c) || c == '/' || c == ',' || c == ';') {
        return false;
      }
      digits = digits && is_digit(c);
    }
    return false;
  }

  // curl -u name:password
  void credentials_after_option() noexcept {
    std::size_t p = at_;
    while (p < bytes_ &&
           (is_space(text_[p]) || is_quote(text_[p]) || text_[p] == '=' || text_[p] == ',')) {
      ++p;
    }
    const std::size_t colon = word_end(p);
    if (p == at_ || colon == p || char_at(colon) != ':' || char_at(colon + 1) == '/') {
      return;
    }
    std::size_t to = colon + 1;
    while (to < bytes_ && !is_space(text_[to]) && !is_quote(text_[to])) {
      ++to;
    }
    keep(colon + 1);
    mask(to);
  }

  char* text_;
  std::size_t bytes_;
  std::size_t at_ = 0;   // next to be read
  std::size_t out_ = 0;  // next to be written
  char before_ = ' ';    // the last one read
};

// Most notes have neither a sign that a value follows nor a word as long as a key.
bool may_hold_secrets(std::string_view text) noexcept {
  std::size_t run = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '=' || c == ':' || c == '-' || is_quote(c)) {
      return true;
    }
    constexpr std::string_view kBearer = "bearer";
    if (c == ' ' && run == kBearer.size() && same(text.substr(i - run, run), kBearer)) {
      return true;
    }
    run = c == ' ' || c == '\0' ? 0 : run + 1;
    if (run >= kShortestKey) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::size_t mask_secrets(char* text, std::size_t bytes) noexcept {
  return may_hold_secrets({text, bytes}) ? Masker(text, bytes).run() : bytes;
}

std::size_t mask_arguments(char* text, std::size_t bytes) noexcept {
  std::size_t out = 0;
  Secrecy next = Secrecy::kNone;  // of the argument before: an option without "="
  bool user = false;              // it was -u or the like
  for (std::size_t at = 0; at < bytes;) {
    const std::string_view all{text + at, bytes - at};
    const std::size_t n = std::min(all.find('\0'), all.size());
    std::string_view word = all.substr(0, n);
    char* const to = text + out;
    const std::size_t equals = std::min(word.find('='), word.size());
    const std::string_view name = word.substr(0, equals);
    const bool plain_name = name.find_first_of("/: '\"") == std::string_view::npos && !name.empty();
    const Secrecy own = plain_name ? secrecy_of(name) : Secrecy::kNone;
    const auto harmless = [](Secrecy s, std::string_view value) {
      return s == Secrecy::kNone || value.empty() ||
             (s != Secrecy::kFull &&
              (value.find_first_not_of("0123456789.,-+") == std::string_view::npos ||
               value.starts_with("/") || value.starts_with("./") || value.starts_with("~/")));
    };
    const bool option = word.starts_with("-");
    std::size_t length = n;
    if (!harmless(next, word) && !(option && next != Secrecy::kFull)) {
      length = std::min(n, kMask.size());
      std::memcpy(to, kMask.data(), length);
    } else if (equals < n && !harmless(own, word.substr(equals + 1))) {
      std::memmove(to, word.data(), equals + 1);
      length = equals + 1 + std::min(n - equals - 1, kMask.size());
      std::memcpy(to + equals + 1, kMask.data(), length - equals - 1);
    } else {
      std::memmove(to, word.data(), n);
      const std::size_t colon = std::string_view(to, n).find(':');
      if (user && colon != kNone && colon + 1 < n) {
        length = colon + 1 + std::min(n - colon - 1, kMask.size());
        std::memcpy(to + colon + 1, kMask.data(), length - colon - 1);
      } else {
        length = mask_secrets(to, n);
      }
    }
    // `word` may lie beneath what was written: what follows it was decided from names read before.
    next = option && equals == n ? own : Secrecy::kNone;
    user = option && length == n && is_one_of(std::string_view(to, n), kUserOptions);
    out += length;
    at += n;
    if (at < bytes) {
      text[out++] = '\0';
      ++at;
    }
  }
  return out;
}

}  // namespace fr
