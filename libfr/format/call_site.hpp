// call_site.hpp - which frame of a stack is the user's: the first outside torch and fr.
#pragma once

#include "format/view.hpp"

namespace fr {

// torch's, fr's or Python's own, and native code: none of them is where a user looks for a cause.
// "" and generated code too; what a user typed in, or gave with -c, is the user's.
bool is_library_file(std::string_view file) noexcept;
bool is_own_file(std::string_view file) noexcept;  // of fr's Python package

struct Site {
  std::string_view file;  // "" = not captured
  std::string_view function;
  u32 line = 0;
};
// The user's frame; the innermost one when all belong to libraries.
Site user_site(const View& view, u32 stack) noexcept;

// The oldest operation of a group that has not ended, as far as the ring still has it.
bool oldest_in_flight(const View& view, u32 group, RecordCopy& out) noexcept;
// The last collective, send or receive issued in any group.
bool last_operation(const View& view, RecordCopy& out) noexcept;
// "all_reduce #41 of default_pg at train.py:91 (step)"; at most bytes - 1 characters.
void describe(const View& view, const RecordCopy& record, char* out, std::size_t bytes) noexcept;
// How far the device library got with it: "launched, its kernel does not run", "its kernel runs on
// 2 channels; channel 0 waits for rank 1 to take step 3 of 8". "" when it says nothing of it.
void describe_device(const View& view, u64 ticket, char* out, std::size_t bytes) noexcept;

}  // namespace fr
