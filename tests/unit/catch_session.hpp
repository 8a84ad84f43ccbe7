// catch_session.hpp - runs the test cases of a program.
#pragma once

namespace fr::test {

// Catch2's exit status: the number of failed cases.
int run_catch(int argc, char** argv);

}  // namespace fr::test
