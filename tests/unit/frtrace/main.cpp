#include "../catch_session.hpp"

int main(int argc, char** argv) {
  return fr::test::run_catch(argc, argv);
}
