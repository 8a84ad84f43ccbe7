// catch.hpp - Catch2 version 3, or 2 (Debian 12).
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif

namespace fr::test {

// Whether a sanitizer slows this program ten times: loops over every byte or thousands of ranks
// are then made shorter.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace fr::test
