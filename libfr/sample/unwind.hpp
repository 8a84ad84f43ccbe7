// unwind.hpp - native frames of a thread of this process from its registers and a copy
// of its stack.
//
// Follows the call frame information of each file (.eh_frame, found through the sorted table of
// .eh_frame_hdr), and frame pointers where there is none. All reads go through peek or the copy, so
// a damaged stack ends the walk and nothing else. No allocation, no lock, no unwinder library:
// those take the loader's lock. Async-signal-safe.
#pragma once

#include <ucontext.h>

#include "sample/modules.hpp"

namespace fr {

// Numbered as DWARF numbers them.
struct Registers {
#if defined(__x86_64__)
  static constexpr u32 kCount = 17;
  static constexpr u32 kSp = 7;
  static constexpr u32 kFp = 6;
  static constexpr u32 kReturn = 16;
#else
  static constexpr u32 kCount = 33;
  static constexpr u32 kSp = 31;
  static constexpr u32 kFp = 29;
  static constexpr u32 kReturn = 30;
#endif
  u64 r[kCount];
  u64 pc;

  static Registers of(const ucontext_t& context) noexcept;
};

// The part of a stack that was copied; what is not in it is read in place.
struct StackCopy {
  u64 base = 0;
  std::size_t bytes = 0;
  const unsigned char* data = nullptr;
};

class Unwinder {
 public:
  explicit Unwinder(const ModuleTable* modules) noexcept : modules_(modules) {}
  // Addresses within the call instruction of each frame, innermost first. *whole: the outermost
  // frame was reached.
  u32 walk(Registers registers, const StackCopy& stack, u64* pcs, u32 limit, bool* whole) noexcept;
  // Forgets earlier walks: their results hold for one set of modules.
  void forget() noexcept;

 private:
  enum Kind : u8 { kSame, kUndefined, kOffset, kValOffset, kRegister, kExpression, kValExpression };
  struct Rule {
    Kind kind;
    i64 value;  // offset, register, or address of an expression
  };
  struct Row {
    Rule regs[Registers::kCount];
    Rule cfa;  // kOffset: register cfa_register + value; kExpression
    u32 cfa_register;
    u32 return_register;
    bool signal_frame;
  };
  struct Cached {
    u64 pc;
    Row row;
  };
  enum class Step { kGone, kEnd, kFrame, kSignalFrame };

  const Row* find_row(u64 pc) noexcept;
  u64 find_entry(const Module& m, u64 pc) noexcept;
  bool make_row(u64 entry, u64 pc, Row& row) noexcept;
  bool run(const unsigned char* code, std::size_t bytes, u64 address, u64 pc, u64& location,
           Row& row, const Row& initial) noexcept;
  bool evaluate(u64 expression, const Registers& r, u64 cfa, bool push_cfa, u64& value) noexcept;
  bool load(u64 address, u64& value) const noexcept;
  Step step(Registers& r, bool innermost) noexcept;

  static constexpr u32 kCached = 256;  // power of two
  const ModuleTable* modules_;
  StackCopy stack_;
  // of the entry being read
  u64 code_align_ = 1;
  i64 data_align_ = 1;
  u8 encoding_ = 0;
  unsigned char entry_[4096];
  unsigned char common_[1024];
  Row saved_[4];
  Cached cache_[kCached];
};

}  // namespace fr
