// got.hpp - redirects calls between shared objects: finds the places in loaded objects that lead
// to a function of a given name and stores ours there.
//
// No import order and no LD_PRELOAD are needed, and objects bound early and made read-only
// (BIND_NOW, RELRO) are reached too. Calls through dlsym() are not. Cold; takes the loader's lock.
#pragma once

#include "format/layout.hpp"

namespace fr {

struct Redirect {
  const char* name;
  void* ours;
  std::atomic<void*> real;  // what the call led to before; known beforehand for lazily bound ones
  bool only_dlsym_users;    // only in objects that look functions up for others (ctypes)
};

// The functions of one library.
struct RedirectTable {
  Redirect* rows;
  u32 n;
  const char* skip[2];        // objects with this in their name are left alone: the library itself
  std::atomic<u32> in_force;  // places that lead to ours now
  std::atomic<u32> refused;   // led elsewhere than the others of that name (two copies of a
                              // library), or could not be written
  // All rows that can be known are: what has no row in this copy of the library is another copy's.
  std::atomic<bool> is_bound{false};

  // Where a function leads, taken from a place that leads there if unknown. nullptr: unknown.
  void* learn(Redirect& r, void* leads_to) noexcept;
};

// Scans every loaded object that was not scanned before, but ours. All tables at once: an object is
// looked at one time.
void redirect_calls(RedirectTable* const* tables, u32 n_tables) noexcept;
// Puts the originals back, wherever ours still stands. Returns the number of places.
u32 restore_calls(RedirectTable* const* tables, u32 n_tables) noexcept;

}  // namespace fr
