// groups.hpp - what is known of a ProcessGroup, cached by its address.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "fr/fr.h"
#include "plan.hpp"

namespace {

const fr_api* g_api = nullptr;

// Grows when a process group is made or destroyed: entries cached before that are stale.
std::atomic<uint32_t> g_epoch{1};

struct GroupEntry {
  std::atomic<GroupEntry*> next{nullptr};  // in the same slot
  const c10d::ProcessGroup* pg = nullptr;
  std::atomic<uint32_t> epoch{0};
  uint32_t generation = 0;
  fr_group_t group = 0;
  std::atomic<uint32_t> timeout_ms{0};
  // Mode of the last Work of each operator: [plan][0 cpu, 1 other device].
  std::array<std::array<std::atomic<uint8_t>, 2>, kMaxPlans> modes{};
};

constexpr size_t kGroupSlots = 1024;
std::atomic<GroupEntry*> g_groups[kGroupSlots];
std::mutex g_groups_lock;

size_t slot_of(const c10d::ProcessGroup* pg) {
  return (reinterpret_cast<uintptr_t>(pg) >> 4) * 0x9e3779b97f4a7c15ull >> 54;
}
static_assert(kGroupSlots == 1u << (64 - 54));

#ifdef FR_BACKEND_HAS_getBackendOptions
// Options of the group's default backend; null where it has none. May throw.
c10::intrusive_ptr<c10d::Backend::Options> options_of(const c10d::ProcessGroup& pg) {
  const auto backend = pg.getDefaultBackend();
  return backend ? backend->getBackendOptions() : nullptr;
}
#else  // torch 2.6 does not expose the options
struct NoOptions {
  std::vector<uint64_t> global_ranks_in_group;
  std::chrono::milliseconds timeout{0};
};
const NoOptions* options_of(const c10d::ProcessGroup&) {
  return nullptr;
}
#endif

// Registers a group that the Python hook has not seen.
fr_group_t register_group(const c10d::ProcessGroup& pg, const std::string& name) {
  std::vector<int32_t> ranks;
  std::string desc;
  std::string backend;
  try {
    desc = pg.getGroupDesc();
    backend = pg.getBackendName();
    if (const auto options = options_of(pg)) {
      for (const uint64_t rank : options->global_ranks_in_group) {
        ranks.push_back(static_cast<int32_t>(rank));
      }
    }
  } catch (...) {
    // a backend without options: the ranks stay unknown
  }
  if (ranks.size() != static_cast<size_t>(pg.getSize())) {
    ranks.clear();
  }
  if (ranks.empty() && desc == "default_pg") {
    for (int32_t rank = 0; rank < pg.getSize(); ++rank) {
      ranks.push_back(rank);
    }
  }
  fr_group_info info{};
  info.struct_bytes = sizeof info;
  info.n_ranks = pg.getSize();
  info.own_rank = pg.getRank();
  info.name = name.c_str();
  info.desc = desc.c_str();
  info.backend = backend.c_str();
  info.ranks = ranks.empty() ? nullptr : ranks.data();
  return g_api->group(&info);
}

// Makes or refreshes the entry of a group that is new, or was cached before the epoch changed.
__attribute__((cold, noinline)) GroupEntry* make_group(const c10d::ProcessGroup* pg,
                                                       uint32_t epoch) {
  std::string name;
  uint32_t timeout_ms = 0;
  try {
    name = pg->getGroupName();
  } catch (...) {
    // no backend yet
  }
  try {
    if (const auto options = options_of(*pg)) {
      timeout_ms = static_cast<uint32_t>(options->timeout.count());
    }
  } catch (...) {
    // unknown
  }
  const uint32_t generation = g_api->generation();
  const std::lock_guard<std::mutex> guard(g_groups_lock);
  const fr_group_t group = g_api->group_find(name.c_str());
  std::atomic<GroupEntry*>* link = &g_groups[slot_of(pg)];
  GroupEntry* before = link->load(std::memory_order_relaxed);
  while (before != nullptr && before->pg != pg) {
    link = &before->next;
    before = link->load(std::memory_order_relaxed);
  }
  if (before != nullptr && group != 0 && before->group == group &&
      before->generation == generation) {
    before->timeout_ms.store(timeout_ms, std::memory_order_relaxed);
    before->epoch.store(epoch, std::memory_order_release);
    return before;
  }
  auto entry = std::make_unique<GroupEntry>();
  entry->pg = pg;
  entry->epoch.store(epoch, std::memory_order_relaxed);
  entry->generation = generation;
  entry->timeout_ms.store(timeout_ms, std::memory_order_relaxed);
  entry->group = group != 0 ? group : register_group(*pg, name);
  entry->next.store(before != nullptr ? before->next.load(std::memory_order_relaxed) : nullptr,
                    std::memory_order_relaxed);
  // Another thread may still use the entry of an ended group that had this group's address. That
  // entry is leaked: 200 bytes per ended group.
  GroupEntry* made = entry.release();
  link->store(made, std::memory_order_release);
  return made;
}

GroupEntry* group_of(const c10d::ProcessGroup* pg, uint32_t generation) {
  const uint32_t epoch = g_epoch.load(std::memory_order_acquire);
  GroupEntry* entry = g_groups[slot_of(pg)].load(std::memory_order_acquire);
  while (entry != nullptr && entry->pg != pg) {
    entry = entry->next.load(std::memory_order_acquire);
  }
  if (entry != nullptr && entry->epoch.load(std::memory_order_acquire) == epoch &&
      entry->generation == generation) {
    return entry;
  }
  return make_group(pg, epoch);
}

}  // namespace
