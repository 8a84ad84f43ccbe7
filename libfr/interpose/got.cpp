// got.cpp - walks the loaded objects and swaps GOT entries and function tables.
#include "interpose/got.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <mutex>

namespace fr {
namespace {

#if defined(__x86_64__)
constexpr u32 kJumpSlot = R_X86_64_JUMP_SLOT;
constexpr u32 kGlobDat = R_X86_64_GLOB_DAT;
constexpr u32 kPointer = R_X86_64_64;
#elif defined(__aarch64__)
constexpr u32 kJumpSlot = R_AARCH64_JUMP_SLOT;
constexpr u32 kGlobDat = R_AARCH64_GLOB_DAT;
constexpr u32 kPointer = R_AARCH64_ABS64;
#endif

std::mutex g_lock;
// Objects that were scanned: where they are and their dynamic section, which tells a newer object
// at the same place.
struct Seen {
  ElfW(Addr) base;
  const void* dynamic;
};
constexpr u32 kSeen = 4096;
Seen g_seen[kSeen];
u32 g_n_seen = 0;
unsigned long long g_unloaded = 0;  // objects so far, by the loader's count

struct Object {
  ElfW(Addr) base = 0;
  const char* name = "";
  const ElfW(Sym)* symbols = nullptr;
  const char* strings = nullptr;
  const ElfW(Rela)* plt = nullptr;
  std::size_t n_plt = 0;
  const ElfW(Rela)* rela = nullptr;
  std::size_t n_rela = 0;
  std::size_t n_relative = 0;  // come first, name no symbol
  ElfW(Addr) relro = 0;        // what the loader made read-only
  ElfW(Addr) relro_end = 0;
  ElfW(Addr) low = ~ElfW(Addr){0};
  ElfW(Addr) high = 0;

  bool holds(const void* p) const noexcept {
    const auto at = reinterpret_cast<ElfW(Addr)>(p);
    return at >= low && at < high;
  }
};

// The loader has put absolute addresses into the dynamic section, except where it is read-only.
template <class T>
T at(const Object& o, ElfW(Addr) value) noexcept {
  return reinterpret_cast<T>(value < o.base ? o.base + value : value);
}

ElfW(Addr) page_bytes() noexcept {
  static const auto bytes = static_cast<ElfW(Addr)>(sysconf(_SC_PAGESIZE));
  return bytes;
}

bool read_object(const dl_phdr_info& info, Object& o) noexcept {
  o.base = info.dlpi_addr;
  o.name = info.dlpi_name != nullptr ? info.dlpi_name : "";
  const ElfW(Dyn)* dynamic = nullptr;
  for (int i = 0; i < info.dlpi_phnum; ++i) {
    const ElfW(Phdr)& h = info.dlpi_phdr[i];
    if (h.p_type == PT_DYNAMIC) {
      dynamic = reinterpret_cast<const ElfW(Dyn)*>(o.base + h.p_vaddr);
    } else if (h.p_type == PT_GNU_RELRO) {
      // Whole pages: what follows on the last one stays writable, and must. Pages of 64 KiB
      // (aarch64) are larger than linkers reckon with.
      const ElfW(Addr) mask = ~(page_bytes() - 1);
      o.relro = (o.base + h.p_vaddr) & mask;
      o.relro_end = (o.base + h.p_vaddr + h.p_memsz) & mask;
    } else if (h.p_type == PT_LOAD) {
      o.low = o.base + h.p_vaddr < o.low ? o.base + h.p_vaddr : o.low;
      o.high = o.base + h.p_vaddr + h.p_memsz > o.high ? o.base + h.p_vaddr + h.p_memsz : o.high;
    }
  }
  if (dynamic == nullptr || std::strstr(o.name, "linux-vdso") != nullptr) {
    return false;
  }
  bool is_rela = true;
  for (const ElfW(Dyn)* d = dynamic; d->d_tag != DT_NULL; ++d) {
    const ElfW(Addr) value = d->d_un.d_ptr;
    switch (d->d_tag) {
      case DT_SYMTAB:
        o.symbols = at<const ElfW(Sym)*>(o, value);
        break;
      case DT_STRTAB:
        o.strings = at<const char*>(o, value);
        break;
      case DT_JMPREL:
        o.plt = at<const ElfW(Rela)*>(o, value);
        break;
      case DT_PLTRELSZ:
        o.n_plt = d->d_un.d_val / sizeof(ElfW(Rela));
        break;
      case DT_PLTREL:
        is_rela = d->d_un.d_val == DT_RELA;
        break;
      case DT_RELA:
        o.rela = at<const ElfW(Rela)*>(o, value);
        break;
      case DT_RELASZ:
        o.n_rela = d->d_un.d_val / sizeof(ElfW(Rela));
        break;
      case DT_RELACOUNT:
        o.n_relative = d->d_un.d_val;
        break;
      default:
        break;
    }
  }
  return o.symbols != nullptr && o.strings != nullptr && is_rela;
}

bool first_look(const Object& o) noexcept {
  const void* key = o.symbols;
  for (u32 i = 0; i < g_n_seen; ++i) {
    if (g_seen[i].base == o.base && g_seen[i].dynamic == key) {
      return false;
    }
  }
  if (g_n_seen < kSeen) {
    g_seen[g_n_seen++] = {o.base, key};
  }
  return true;
}

// Stores one pointer, making its page writable for the moment where it is not.
bool store(const Object& o, void** slot, void* value) noexcept {
  const auto place = reinterpret_cast<ElfW(Addr)>(slot);
  const ElfW(Addr) page = place & ~(page_bytes() - 1);
  const bool read_only = place >= o.relro && place < o.relro_end;
  if (read_only &&
      mprotect(reinterpret_cast<void*>(page), page_bytes(), PROT_READ | PROT_WRITE) != 0) {
    return false;
  }
  __atomic_store_n(slot, value, __ATOMIC_RELEASE);
  if (read_only) {
    mprotect(reinterpret_cast<void*>(page), page_bytes(), PROT_READ);
  }
  return true;
}

// A place that leads to a function by its name.
struct Slot {
  const char* name;
  void** at;
  bool is_data;  // a pointer of the object's own: it may hold anything by now
  bool has_own;  // the object has a function of that name itself (a library linked statically)
};

template <class Visit>
void each_slot(const Object& o, Visit visit) noexcept {
  const auto scan = [&](const ElfW(Rela)* first, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) {
      const auto type = static_cast<u32>(ELF64_R_TYPE(first[i].r_info));
      if (type != kJumpSlot && type != kGlobDat && (type != kPointer || first[i].r_addend != 0)) {
        continue;
      }
      const ElfW(Sym)& symbol = o.symbols[ELF64_R_SYM(first[i].r_info)];
      const bool has_own = symbol.st_shndx != SHN_UNDEF;
      if (!has_own || ELF64_ST_BIND(symbol.st_info) == STB_WEAK) {
        visit(Slot{o.strings + symbol.st_name, reinterpret_cast<void**>(o.base + first[i].r_offset),
                   type == kPointer, has_own});
      }
    }
  };
  if (o.plt != nullptr) {
    scan(o.plt, o.n_plt);
  }
  if (o.rela != nullptr && o.n_relative <= o.n_rela) {
    scan(o.rela + o.n_relative, o.n_rela - o.n_relative);
  }
}

struct Scan {
  RedirectTable* const* tables;
  u32 n_tables;
  u32 restored;
  const void* interpreter;  // a function of Python itself
};

// Modules of Python that look functions up on behalf of others, always with a handle of their own,
// and the object of the interpreter: some builds have ctypes in it. Other objects are left alone:
// the result of dlsym(RTLD_NEXT) depends on the calling object.
bool is_dlsym_user(const Object& o, const Scan& scan) noexcept {
  if (scan.interpreter != nullptr && o.holds(scan.interpreter)) {
    return true;
  }
  const char* slash = std::strrchr(o.name, '/');
  const char* name = slash != nullptr ? slash + 1 : o.name;
  const bool module =
      std::strstr(name, ".cpython-") != nullptr || std::strstr(name, ".abi3.") != nullptr;
  return module &&
         (std::strstr(name, "_ctypes.") != nullptr || std::strstr(name, "nccl") != nullptr);
}

// All but a few of the names are settled by their first letters.
bool can_be_ours(const char* name) noexcept {
  return name[0] == 'n' || name[0] == 'd' || (name[0] == 'c' && name[1] == 'u');
}

void redirect(const Object& o, RedirectTable& table, Redirect& r, const Slot& slot) noexcept {
  void* const seen = __atomic_load_n(slot.at, __ATOMIC_ACQUIRE);
  if (seen == r.ours) {
    ++table.in_force;  // redirected before; all objects are looked at again
    return;
  }
  if (seen == nullptr) {
    return;  // weak, and nobody has the function: the caller asks for that
  }
  // A place that was never called through leads back into its own object, which would look the
  // function up and overwrite ours: then it must be known where it would lead. It cannot be asked
  // here, under the loader's lock.
  void* const known = table.learn(r, o.holds(seen) || slot.is_data ? nullptr : seen);
  const bool leads_there =
      o.holds(seen) ? known != nullptr && !slot.has_own && !slot.is_data : known == seen;
  ++(leads_there && store(o, slot.at, r.ours) ? table.in_force : table.refused);
}

void forget_objects(const Scan& scan) noexcept {
  g_n_seen = 0;
  for (u32 t = 0; t < scan.n_tables; ++t) {
    scan.tables[t]->in_force.store(0);
    scan.tables[t]->refused.store(0);
  }
}

int visit_object(dl_phdr_info* info, std::size_t, void* argument) {
  auto& scan = *static_cast<Scan*>(argument);
  if (info->dlpi_subs != g_unloaded) {
    // An object loaded in place of an unloaded one may look like it: treat all as new.
    g_unloaded = info->dlpi_subs;
    forget_objects(scan);
  }
  Object o;
  if (!read_object(*info, o) || o.holds(reinterpret_cast<const void*>(&visit_object)) ||
      !first_look(o)) {
    return 0;
  }
  each_slot(o, [&](const Slot& slot) {
    if (!can_be_ours(slot.name)) {
      return;
    }
    for (u32 t = 0; t < scan.n_tables; ++t) {
      RedirectTable& table = *scan.tables[t];
      for (u32 i = 0; i < table.n; ++i) {
        Redirect& r = table.rows[i];
        if (std::strcmp(r.name, slot.name) != 0 ||
            (r.only_dlsym_users && !is_dlsym_user(o, scan))) {
          continue;
        }
        for (const char* skip : table.skip) {
          if (skip != nullptr && std::strstr(o.name, skip) != nullptr) {
            return;
          }
        }
        redirect(o, table, r, slot);
        return;
      }
    }
  });
  return 0;
}

int restore_object(dl_phdr_info* info, std::size_t, void* argument) {
  auto& scan = *static_cast<Scan*>(argument);
  Object o;
  if (!read_object(*info, o)) {
    return 0;
  }
  each_slot(o, [&](const Slot& slot) {
    if (!can_be_ours(slot.name)) {
      return;
    }
    void* const seen = __atomic_load_n(slot.at, __ATOMIC_ACQUIRE);
    for (u32 t = 0; t < scan.n_tables; ++t) {
      for (u32 i = 0; i < scan.tables[t]->n; ++i) {
        Redirect& r = scan.tables[t]->rows[i];
        if (seen == r.ours && std::strcmp(r.name, slot.name) == 0 && r.real.load() != nullptr &&
            store(o, slot.at, r.real.load())) {
          ++scan.restored;
          return;
        }
      }
    }
  });
  return 0;
}

}  // namespace

void* RedirectTable::learn(Redirect& r, void* leads_to) noexcept {
  void* known = r.real.load(std::memory_order_acquire);
  if (known == nullptr && leads_to != nullptr && !is_bound.load(std::memory_order_acquire) &&
      r.real.compare_exchange_strong(known, leads_to)) {
    known = leads_to;
  }
  return known;
}

void RedirectTable::learn_all(void* library) noexcept {
  for (u32 i = 0; i < n; ++i) {
    if (rows[i].real.load() == nullptr && !rows[i].only_dlsym_users) {
      learn(rows[i], dlsym(library, rows[i].name));
    }
  }
}

void redirect_calls(RedirectTable* const* tables, u32 n_tables) noexcept {
  const void* interpreter = dlsym(RTLD_DEFAULT, "Py_GetVersion");
  const std::lock_guard lock(g_lock);
  Scan scan{tables, n_tables, 0, interpreter};
  dl_iterate_phdr(visit_object, &scan);
}

u32 restore_calls(RedirectTable* const* tables, u32 n_tables) noexcept {
  const std::lock_guard lock(g_lock);
  Scan scan{tables, n_tables, 0, nullptr};
  dl_iterate_phdr(restore_object, &scan);
  forget_objects(scan);
  return scan.restored;
}

}  // namespace fr
