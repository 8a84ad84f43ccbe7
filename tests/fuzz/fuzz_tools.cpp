// fuzz_tools.cpp - what other tools print: job logs, py-spy's JSON, faulthandler's text, traces of
// torch.profiler, NCCL Inspector's lines.
#include "input/other_tools/inspector.hpp"
#include "input/other_tools/job_log.hpp"
#include "input/other_tools/kineto.hpp"
#include "input/other_tools/settle.hpp"
#include "input/other_tools/stacks.hpp"
#include "target.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string why;
  const std::span<const unsigned char> bytes{data, size};
  frfuzz::go(frtrace::load_py_spy(bytes, why), false);
  frfuzz::go(frtrace::load_kineto(bytes, why), false);
  if (frtrace::is_inspector(bytes)) {
    frfuzz::go(frtrace::load_inspector(bytes), false);
  }
  if (frtrace::has_faulthandler(bytes)) {
    frfuzz::go(frtrace::load_faulthandler(bytes), false);
  }
  for (auto& e : frtrace::load_job_log(bytes, 1'763'900'000 * frtrace::kSecond)) {
    frfuzz::go(std::move(e), false);
  }
  return 0;
}
