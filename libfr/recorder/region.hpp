// region.hpp - creates the mapped file of this process; opens those of others.
#pragma once

#include <cstddef>
#include <string>

#include "format/layout.hpp"

namespace fr {

struct Region {
  unsigned char* base = nullptr;
  std::size_t bytes = 0;
  bool anonymous = false;
  std::string dir;   // FR_SHM_DIR/fr-<uid>; also set when anonymous
  std::string name;  // within dir; "" when anonymous
  std::string why;   // why anonymous

  Header& header() const noexcept { return *reinterpret_cast<Header*>(base); }
  template <class T>
  T* section(Section s) const noexcept {
    return reinterpret_cast<T*>(base + header().sections[s].offset_bytes);
  }
};

// FR_SHM_DIR/fr-<uid>, created 0700; "" and *why when it cannot be had or belongs to another user.
std::string ring_directory(const std::string& shm_dir, std::string* why);

// Maps a new region for n_records (a power of two), all zero but for the header's layout fields;
// falls back to anonymous memory. The caller fills the identity and stores the magic.
Region create_region(const std::string& shm_dir, const std::string& name, u32 n_records);

// Bytes of a region with that many records.
std::size_t region_bytes(u32 n_records);

}  // namespace fr
