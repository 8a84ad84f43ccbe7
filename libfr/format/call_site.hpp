// call_site.hpp - which frame of a stack is the user's: the first outside the installed packages.
#pragma once

#include "format/view.hpp"

namespace fr {

// The origin of a file, by its path alone: dumps of other tools have no more.
enum class Origin : u8 {
  kUser,     // editable installs too; what was typed in, or given with -c
  kCommand,  // an installed command, like bin/accelerate
  kPackage,  // below site-packages or dist-packages
  kCore,     // torch's, fr's and Python's own, native and generated code, ""
};
Origin origin_of(std::string_view file) noexcept;
inline bool is_library_file(std::string_view file) noexcept {
  return origin_of(file) != Origin::kUser;
}
bool is_own_file(std::string_view file) noexcept;  // of fr's Python package
// "accelerate/data.py" of ".../site-packages/accelerate/data.py"; "" elsewhere.
std::string_view installed_path(std::string_view file) noexcept;
// "accelerate" of ".../site-packages/accelerate/data.py"; "" of what is no package's.
std::string_view package_of(std::string_view file) noexcept;
// Without class and enclosing functions: "gather"; but "Trainer.__init__", which alone says little.
std::string_view plain_name(std::string_view function) noexcept;

struct UserFrame {
  int user = -1;    // the user's innermost frame
  int within = -1;  // what it called, where that is a package other than torch
};
// Finds the user's frame among `n` frames, innermost first. Where the user has none (a program that
// was installed), the package that the program began in is the user's, then the installed command.
template <class FileOf>
UserFrame user_frame(int n, FileOf file_of) noexcept {
  UserFrame out;
  int command = -1;
  int outermost = -1;  // package frame
  for (int i = 0; i < n && out.user < 0; ++i) {
    switch (origin_of(file_of(i))) {
      case Origin::kUser:
        out.user = i;
        break;
      case Origin::kCommand:
        command = i;
        break;
      case Origin::kPackage:
        outermost = i;
        break;
      case Origin::kCore:
        break;
    }
  }
  if (out.user < 0 && outermost >= 0) {
    const std::string_view program = package_of(file_of(outermost));
    while (out.user < 0 || package_of(file_of(out.user)) != program) {
      ++out.user;
    }
  } else if (out.user < 0) {
    out.user = command;
  }
  for (out.within = out.user - 1;
       out.within >= 0 && origin_of(file_of(out.within)) != Origin::kPackage;) {
    --out.within;
  }
  out.within = out.within < 0 ? -1 : out.within;
  return out;
}

struct Site {
  std::string_view file;  // "" = not captured
  std::string_view function;
  u32 line = 0;
  std::string_view package;  // that the user's frame had called; "" none but torch
  std::string_view called;   // its function
};
// The user's frame; the innermost one when all are torch's or Python's own.
Site user_site(const View& view, u32 stack) noexcept;

// The oldest operation of a group that has not ended, as far as the ring still has it.
bool oldest_in_flight(const View& view, u32 group, RecordCopy& out) noexcept;
// The last collective, send or receive issued in any group.
bool last_operation(const View& view, RecordCopy& out, u32 tid = 0) noexcept;  // 0: any thread's
// The name of a group in messages: its description, or its members if it has no description.
class GroupLabel {
 public:
  GroupLabel(const View& view, const GroupRow* group) noexcept;
  GroupLabel(const GroupLabel&) = delete;
  GroupLabel& operator=(const GroupLabel&) = delete;
  std::string_view text() const noexcept { return text_; }

 private:
  char own_[128];
  std::string_view text_;
};
// "all_reduce #41 of default_pg at train.py:91 (step)", "send #4 of pp to rank 6 at ..."; at most
// bytes - 1 characters.
void describe(const View& view, const RecordCopy& record, char* out, std::size_t bytes) noexcept;
// How far the device library got with it: "launched, its kernel does not run", "its kernel runs on
// 2 channels; channel 0 waits for rank 1 to take step 3 of 8". "" when it says nothing of it.
void describe_device(const View& view, u64 ticket, char* out, std::size_t bytes) noexcept;

}  // namespace fr
