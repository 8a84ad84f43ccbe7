// secrets.hpp - finds passwords, tokens and keys in text that evidence keeps, and overwrites them.
// No lock, no allocation: this runs on the dump path. A guess by names and shapes: what it does not
// know it leaves.
#pragma once

#include <cstddef>
#include <string_view>

namespace fr {

// How much of a value with this name may be shown: "db_password", "--api-key", "Authorization".
enum class Secrecy {
  kNone,  // all of it
  kWeak,  // numbers and paths: "max_tokens = 4096", "--token /run/token"
  kFull   // nothing
};
Secrecy secrecy_of(std::string_view name) noexcept;

// Overwrites secrets in place: values with a secret name ("token=x", "--password x", "'pwd': 'x'",
// ('secret', 'x')), credentials in URLs and headers, words that look like keys. Each is replaced by
// at most three '*'. Returns the new length, which is never more. Linear.
std::size_t mask_secrets(char* text, std::size_t bytes) noexcept;

// The same for arguments, each ended by a NUL: a value ends where its argument does.
std::size_t mask_arguments(char* text, std::size_t bytes) noexcept;

}  // namespace fr
