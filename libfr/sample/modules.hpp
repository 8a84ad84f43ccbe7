// modules.hpp - which file each address of a process comes from, and which function.
//
// Read from /proc/PID/maps and from the mapped ELF headers and symbol tables, through peek: the
// dynamic loader's own functions take its lock, which a thread that hangs inside dlopen() holds.
// No allocation, no lock; async-signal-safe.
#pragma once

#include "sample/memory_read.hpp"

namespace fr {

struct Module {
  u64 begin;  // first and one past the last mapped byte
  u64 end;
  u64 bias;          // run-time address minus address in the file's headers
  u64 eh_frame_hdr;  // 0 none
  u64 dynamic;       // 0 none
  u32 path;          // offset into ModuleTable::text
  bool vdso;
  u8 build_id_bytes;  // 0 none
  u8 build_id[20];
};

struct Symbol {
  u64 pc;     // asked for
  u64 name;   // address of its name; 0 unknown
  u64 start;  // of the function
};

struct ModuleTable {
  static constexpr u32 kModules = 1024;
  static constexpr u32 kTextBytes = 128 * 1024;
  static constexpr u32 kBufferBytes = 48 * 1024;

  // Reads the maps afresh; of the process that this thread peeks at.
  void read(i32 pid) noexcept;
  const Module* find(u64 pc) const noexcept;  // nullptr: in no file
  const Module* find_file(const char* path) const noexcept;
  bool is_c_library(const Module& m) const noexcept;  // or the kernel's part of it
  const char* path(const Module& m) const noexcept { return text + m.path; }
  // Names functions: symbols[] sorted by pc, those found get name and start.
  void name(Symbol* symbols, u32 n) noexcept;

  u32 n = 0;
  u32 lost = 0;  // modules beyond the table
  u32 text_used = 0;
  Module modules[kModules];
  char text[kTextBytes];
  alignas(64) unsigned char buffer[kBufferBytes];

 private:
  void add_line(const char* line, Module& current) noexcept;
  void finish(Module& m) noexcept;
  void name_in(const Module& m, Symbol* symbols, u32 count) noexcept;
};

}  // namespace fr
