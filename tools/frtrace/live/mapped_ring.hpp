// mapped_ring.hpp - the rings of this node, mapped for reading only. Their processes may write to
// them, end, or remove them meanwhile.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "format/view.hpp"
#include "model/rank_data.hpp"

namespace frtrace {

class MappedRing {
 public:
  MappedRing(int directory, const std::string& name);
  ~MappedRing();
  MappedRing(const MappedRing&) = delete;
  MappedRing& operator=(const MappedRing&) = delete;
  const fr::View& view() const { return view_; }  // !ok(): no ring
  std::uint64_t inode() const { return inode_; }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
  std::uint64_t inode_ = 0;
  fr::View view_;
};

// The directory of this user's rings.
std::string ring_directory(const std::string& shm_dir);

// The rings in a directory, as far as they can be read; only the files that are `wanted`.
using WantsRing = std::function<bool(const std::string& name)>;
using TakesRing = std::function<void(const std::string& name, std::unique_ptr<MappedRing>)>;
void for_each_ring(const std::string& directory, const TakesRing& take,
                   const WantsRing& wanted = {});

// A text of a ring's header: NUL-terminated, unless it fills its field.
std::string fixed(const char* text, std::size_t most);

// Whether the ring's process lives. A process of another pid namespace cannot be looked up: it
// counts as alive if its watchdog gave a sign in the last `sign` ns. now: unix time, ns.
bool lives(const fr::Header&, Time now, Time sign = 60 * kSecond);

}  // namespace frtrace
