// modules.cpp - /proc/self/maps, ELF headers and symbol tables as they are mapped.
#include "sample/modules.hpp"

#include <elf.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "format/text.hpp"

namespace fr {
namespace {

u64 parse_hex(const char*& at) noexcept {
  u64 value = 0;
  for (;; ++at) {
    if (*at >= '0' && *at <= '9') {
      value = value * 16 + static_cast<u64>(*at - '0');
    } else if (*at >= 'a' && *at <= 'f') {
      value = value * 16 + static_cast<u64>(*at - 'a' + 10);
    } else {
      return value;
    }
  }
}

// The identity that the linker gave the file: a note among others.
void read_build_id(u64 notes, u64 bytes, Module& m) noexcept {
  Elf64_Nhdr note;
  for (u64 at = 0; at + sizeof note <= bytes && peek(notes + at, &note, sizeof note);) {
    const u64 name = notes + at + sizeof note;
    const u64 text = name + ((u64{note.n_namesz} + 3) & ~u64{3});
    char owner[4];
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && peek(name, owner, 4) &&
        std::memcmp(owner, "GNU", 4) == 0 && note.n_descsz <= sizeof m.build_id &&
        peek(text, m.build_id, note.n_descsz)) {
      m.build_id_bytes = static_cast<u8>(note.n_descsz);
      return;
    }
    at = text + ((u64{note.n_descsz} + 3) & ~u64{3}) - notes;
  }
}

}  // namespace

void ModuleTable::finish(Module& m) noexcept {
  Elf64_Ehdr header;
  if (m.begin == 0 || !peek(m.begin, &header, sizeof header) ||
      std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_phentsize != sizeof(Elf64_Phdr) || header.e_phnum > 64) {
    return;
  }
  Elf64_Phdr rows[64];
  if (!peek(m.begin + header.e_phoff, rows, sizeof(Elf64_Phdr) * header.e_phnum)) {
    return;
  }
  bool known = false;
  for (u32 i = 0; i < header.e_phnum && !known; ++i) {
    if (rows[i].p_type == PT_LOAD) {
      m.bias = m.begin - (rows[i].p_vaddr - rows[i].p_offset);
      known = true;
    }
  }
  for (u32 i = 0; i < header.e_phnum && known; ++i) {
    if (rows[i].p_type == PT_GNU_EH_FRAME) {
      m.eh_frame_hdr = m.bias + rows[i].p_vaddr;
    } else if (rows[i].p_type == PT_DYNAMIC) {
      m.dynamic = m.bias + rows[i].p_vaddr;
    } else if (rows[i].p_type == PT_NOTE && m.build_id_bytes == 0) {
      read_build_id(m.bias + rows[i].p_vaddr, std::min<u64>(rows[i].p_memsz, 4096), m);
    } else if (rows[i].p_type == PT_LOAD) {
      m.end = std::max(m.end, m.bias + rows[i].p_vaddr + rows[i].p_memsz);
    }
  }
  if (n == kModules) {
    ++lost;
  } else if (known) {
    modules[n++] = m;
  }
}

// "55d0-55e0 r-xp 00001000 fe:01 1234   /usr/lib/libx.so"
void ModuleTable::add_line(const char* line, Module& current) noexcept {
  const char* at = line;
  const u64 begin = parse_hex(at);
  if (*at++ != '-') {
    return;
  }
  const u64 end = parse_hex(at);
  const bool readable = at[0] == ' ' && at[1] == 'r';
  at += std::strlen(at) > 6 ? 6 : std::strlen(at);
  const u64 offset = parse_hex(at);
  const char* path = std::strpbrk(at, "/[");
  if (path == nullptr) {
    return;
  }
  const bool vdso = std::strcmp(path, "[vdso]") == 0;
  if (*path == '[' && !vdso) {
    return;
  }
  if (current.begin != 0 && std::strcmp(text + current.path, path) == 0 &&
      (offset != 0 || begin == current.end)) {
    current.end = end;
    return;
  }
  if (current.begin != 0) {
    finish(current);
  }
  current = {};
  const std::size_t length = std::strlen(path) + 1;
  if (!readable || offset != 0 || text_used + length > kTextBytes) {
    lost += readable && offset == 0 ? 1 : 0;
    return;
  }
  std::memcpy(text + text_used, path, length);
  current.begin = begin;
  current.end = end;
  current.path = text_used;
  current.vdso = vdso;
  text_used += static_cast<u32>(length);
}

void ModuleTable::read(i32 pid) noexcept {
  n = lost = text_used = 0;
  char file[32];
  format(file, sizeof file, "/proc/%d/maps", pid);
  const int fd = open(file, O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return;
  }
  Module current{};
  std::size_t used = 0;
  char* const lines = reinterpret_cast<char*>(buffer);
  for (;;) {
    const ssize_t got = ::read(fd, lines + used, kBufferBytes - 1 - used);
    if (got <= 0) {
      break;
    }
    used += static_cast<std::size_t>(got);
    std::size_t from = 0;
    while (char* end = static_cast<char*>(std::memchr(lines + from, '\n', used - from))) {
      *end = '\0';
      add_line(lines + from, current);
      from = static_cast<std::size_t>(end - lines) + 1;
    }
    if (from == 0 && used == kBufferBytes - 1) {
      from = used;  // no such line can be
    }
    std::memmove(lines, lines + from, used - from);
    used -= from;
  }
  close(fd);
  if (current.begin != 0) {
    finish(current);
  }
}

const Module* ModuleTable::find_file(const char* file) const noexcept {
  const Module* m = std::find_if(modules, modules + n,
                                 [&](const Module& x) { return std::strcmp(path(x), file) == 0; });
  return m != modules + n ? m : nullptr;
}

bool ModuleTable::is_c_library(const Module& m) const noexcept {
  const std::string_view file = path(m);
  const std::string_view name = file.substr(file.rfind('/') + 1);
  return m.vdso || name.starts_with("libc.") || name.starts_with("libc-") ||
         name.starts_with("libpthread");
}

const Module* ModuleTable::find(u64 pc) const noexcept {
  const Module* end = modules + n;
  const Module* m = std::upper_bound(modules, end, pc,
                                     [](u64 value, const Module& x) { return value < x.begin; });
  if (m == modules) {
    return nullptr;
  }
  --m;
  return pc < m->end ? m : nullptr;
}

void ModuleTable::name(Symbol* symbols, u32 count) noexcept {
  for (u32 i = 0; i < count;) {
    const Module* m = find(symbols[i].pc);
    u32 end = i + 1;
    while (m != nullptr && end < count && symbols[end].pc < m->end) {
      ++end;
    }
    if (m != nullptr) {
      name_in(*m, symbols + i, end - i);
    }
    i = end;
  }
}

void ModuleTable::name_in(const Module& m, Symbol* symbols, u32 count) noexcept {
  u64 table = 0;
  u64 names = 0;
  u64 gnu_hash = 0;
  u64 hash = 0;
  Elf64_Dyn d{};
  for (u32 i = 0; i < 256 && m.dynamic != 0; ++i) {
    if (!peek(m.dynamic + i * sizeof d, &d, sizeof d) || d.d_tag == DT_NULL) {
      break;
    }
    // the loader has put run-time addresses there, except for the vdso
    const u64 value = d.d_un.d_ptr < m.bias ? d.d_un.d_ptr + m.bias : d.d_un.d_ptr;
    table = d.d_tag == DT_SYMTAB ? value : table;
    names = d.d_tag == DT_STRTAB ? value : names;
    gnu_hash = d.d_tag == DT_GNU_HASH ? value : gnu_hash;
    hash = d.d_tag == DT_HASH ? value : hash;
  }
  if (table == 0 || names == 0) {
    return;
  }
  // How many symbols there are, only the hash tables tell.
  u64 n_symbols = 0;
  u32 head[4] = {};  // buckets, first symbol, Bloom words, shift
  if (gnu_hash != 0 && peek(gnu_hash, head, sizeof head)) {
    const u64 buckets = gnu_hash + 16 + u64{head[2]} * 8;
    auto* words = reinterpret_cast<u32*>(buffer);
    constexpr u64 kWords = kBufferBytes / 4;
    u32 last = 0;
    for (u64 at = 0; at < head[0]; at += kWords) {
      const u64 part = std::min(kWords, head[0] - at);
      if (!peek(buckets + at * 4, words, part * 4)) {
        return;
      }
      for (u64 i = 0; i < part; ++i) {
        last = std::max(last, words[i]);
      }
    }
    n_symbols = head[1];
    if (last >= head[1]) {
      const u64 chains = buckets + u64{head[0]} * 4;
      for (u64 i = last;; ++i) {
        u32 link = 1;
        if (!peek(chains + (i - head[1]) * 4, &link, 4) || (link & 1) != 0) {
          n_symbols = i + 1;
          break;
        }
      }
    }
  } else if (hash != 0 && peek(hash, head, 8)) {
    n_symbols = head[1];
  }
  constexpr u64 kRows = kBufferBytes / sizeof(Elf64_Sym);
  const auto* rows = reinterpret_cast<const Elf64_Sym*>(buffer);
  for (u64 at = 0; at < n_symbols; at += kRows) {
    const u64 part = std::min(kRows, n_symbols - at);
    if (!peek(table + at * sizeof(Elf64_Sym), buffer, part * sizeof(Elf64_Sym))) {
      return;
    }
    for (u64 i = 0; i < part; ++i) {
      const Elf64_Sym& s = rows[i];
      const u32 type = ELF64_ST_TYPE(s.st_info);
      if (s.st_shndx == SHN_UNDEF || s.st_size == 0 ||
          (type != STT_FUNC && type != STT_GNU_IFUNC)) {
        continue;
      }
      const u64 start = m.bias + s.st_value;
      Symbol* end = symbols + count;
      Symbol* x = std::lower_bound(symbols, end, start,
                                   [](const Symbol& a, u64 value) { return a.pc < value; });
      for (; x != end && x->pc < start + s.st_size; ++x) {
        if (x->name == 0) {
          x->name = names + s.st_name;
          x->start = start;
        }
      }
    }
  }
}

}  // namespace fr
