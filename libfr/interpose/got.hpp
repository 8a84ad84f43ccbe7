// got.hpp - redirects calls between shared objects: finds the places in loaded objects that lead
// to a function of a given name and stores ours there.
//
// No import order and no LD_PRELOAD are needed, and objects bound early and made read-only
// (BIND_NOW, RELRO) are reached too. Calls through dlsym() are not. Cold; takes the loader's lock.
//
// A call is known by its name: a function that runs instead is a template over that name, passes
// the call on with pass_on<kCall>(arguments...), and has a row of a table by FR_HOOK.
#pragma once

#include <algorithm>

#include "format/layout.hpp"

namespace fr {

template <std::size_t N>
struct CallName {
  char text[N];
  consteval CallName(const char (&name)[N]) { std::copy_n(name, N, text); }
};

// The function that the call led to before; known beforehand for lazily bound ones.
template <CallName kCall>
inline std::atomic<void*> g_real{nullptr};

template <CallName kCall, class F>
F* real() noexcept {
  return reinterpret_cast<F*>(g_real<kCall>.load(std::memory_order_acquire));
}

// The original, called with what its declaration takes: the types of the arguments are those.
template <CallName kCall, class... A>
int pass_on(A... arguments) noexcept {
  return real<kCall, int(A...)>()(arguments...);
}

struct Redirect {
  const char* name;
  void* ours;
  std::atomic<void*>& real;
  bool only_dlsym_users = false;  // only in objects that look functions up for others (ctypes)
};

// A row: function<name, further arguments of the template...>.
#define FR_HOOK(name, function, ...) \
  {name, reinterpret_cast<void*>(&function<name __VA_OPT__(, ) __VA_ARGS__>), g_real<name>}

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
  // The same for all rows with a function of that library.
  void learn_all(void* library) noexcept;
};

// Scans every loaded object that was not scanned before, but ours. All tables at once: an object is
// looked at one time.
void redirect_calls(RedirectTable* const* tables, u32 n_tables) noexcept;
// Puts the originals back, wherever ours still stands. Returns the number of places.
u32 restore_calls(RedirectTable* const* tables, u32 n_tables) noexcept;

}  // namespace fr
