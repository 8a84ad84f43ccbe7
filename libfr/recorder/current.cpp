// current.cpp - the words by which the record path and signal handlers find the recorder. They are
// plain: their reader may have interrupted anything.
#include "recorder/current.hpp"

namespace fr {

std::atomic<Hot*> g_hot{nullptr};
std::atomic<fr_stack_provider> g_stack_provider{nullptr};
std::atomic<Recorder*> g_recorder{nullptr};
thread_local ThreadFacts t_facts __attribute__((tls_model("initial-exec"))) = {};

}  // namespace fr
