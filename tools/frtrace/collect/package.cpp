#include "collect/package.hpp"

#include <zstd.h>

#include <array>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>

#include "input/msgpack_tree.hpp"

namespace frtrace::collect {

namespace {

constexpr int kVersion = 1;
constexpr std::size_t kMostBytes = std::size_t{2} << 30;  // unpacked
constexpr std::size_t kLine = 3 * 1024;                   // bytes in one line of 4096 letters
constexpr std::string_view kLetters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

// Bounded whatever the frame claims. Empty: not a whole frame.
std::string decompress(std::string_view bytes) {
  const std::unique_ptr<ZSTD_DCtx, std::size_t (*)(ZSTD_DCtx*)> context(ZSTD_createDCtx(),
                                                                        ZSTD_freeDCtx);
  std::string out;
  std::vector<char> part(std::size_t{1} << 20);
  ZSTD_inBuffer from{bytes.data(), bytes.size(), 0};
  while (context != nullptr) {
    ZSTD_outBuffer to{part.data(), part.size(), 0};
    const std::size_t left = ZSTD_decompressStream(context.get(), &to, &from);
    if (ZSTD_isError(left) != 0U || out.size() + to.pos > kMostBytes) {
      break;
    }
    out.append(part.data(), to.pos);
    if (left == 0) {
      return out;
    }
    if (from.pos == from.size && to.pos < part.size()) {
      break;  // cut
    }
  }
  return "";
}

}  // namespace

std::string pack(const Package& p) {
  nlohmann::json files = nlohmann::json::array();
  for (const auto& [name, content] : p.files) {
    files.push_back({name, content});
  }
  const nlohmann::json all{{"format", "fr.node"},  {"version", kVersion}, {"host", p.host},
                           {"boot_id", p.boot_id}, {"status", p.status},  {"said", p.said},
                           {"ranks", p.ranks},     {"files", files}};
  const std::vector<std::uint8_t> raw = nlohmann::json::to_msgpack(all);
  std::string out(ZSTD_compressBound(raw.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), raw.data(), raw.size(), 1));
  return out;
}

bool unpack(std::string_view bytes, Package& p) {
  const std::string raw = decompress(bytes);
  std::vector<Object> tape;
  if (raw.empty() || parse_msgpack(std::span(raw.data(), raw.size()), tape) != Parsed::kWhole) {
    return false;
  }
  const Object* root = tape.data();
  if (text(member(root, "format")) != "fr.node" ||
      number<int>(member(root, "version")) != kVersion) {
    return false;
  }
  p.host = text(member(root, "host"));
  p.boot_id = text(member(root, "boot_id"));
  p.said = text(member(root, "said"));
  p.status = number<int>(member(root, "status"));
  for (const Object& rank : list(member(root, "ranks"))) {
    p.ranks.push_back(number<int>(&rank, -1));
  }
  for (const Object& file : list(member(root, "files"))) {
    const Row row(&file);
    p.files.emplace_back(file_name(text(row[0])), text(row[1]));
  }
  return true;
}

std::string file_name(std::string_view from) {
  std::string out;
  for (const char c : from.substr(0, 200)) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                       c == '-' || c == '_' || (c == '.' && !out.empty());
    out += plain ? c : '_';
  }
  return out.empty() ? "_" : out;
}

std::string to_base64_lines(std::string_view bytes) {
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t word = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      word = word << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0);
    }
    for (std::size_t k = 0; k < 4; ++k) {
      const bool padding = i + k > bytes.size();
      out += padding ? '=' : kLetters[word >> (18 - 6 * k) & 63];
    }
    if ((i + 3) % kLine == 0) {
      out += '\n';
    }
  }
  return out + (out.empty() || out.back() == '\n' ? "" : "\n");
}

std::string from_base64(std::string_view text) {
  std::array<int, 256> value{};
  value.fill(-1);
  for (std::size_t i = 0; i < kLetters.size(); ++i) {
    value[static_cast<unsigned char>(kLetters[i])] = static_cast<int>(i);
  }
  std::string out;
  std::uint32_t word = 0;
  int bits = 0;
  for (const char c : text) {
    const int v = value[static_cast<unsigned char>(c)];
    if (v < 0) {
      break;
    }
    word = word << 6 | static_cast<std::uint32_t>(v);
    bits += 6;
    if (bits >= 8) {
      bits -= 8;
      out += static_cast<char>(word >> bits & 255);
    }
  }
  return out;
}

}  // namespace frtrace::collect
