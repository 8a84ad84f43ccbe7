// catch_session.cpp - Catch2's own code, which takes 25 s to compile, once for all test programs.
#define CATCH_CONFIG_RUNNER
#include "catch_session.hpp"

#include "catch.hpp"

namespace fr::test {

int run_catch(int argc, char** argv) {
  return Catch::Session().run(argc, argv);
}

}  // namespace fr::test
