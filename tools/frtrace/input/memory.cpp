#include "input/memory.hpp"

#include <algorithm>
#include <string>
#include <vector>

namespace frtrace {

namespace {

thread_local FileMemory* g_current = nullptr;

template <class T>
std::size_t size_of(const std::vector<T>& all) {
  return all.capacity() * sizeof(T);
}

std::size_t text_of(const std::string& text) {
  return text.capacity() > sizeof(std::string) ? text.capacity() : 0;
}

// Tables that several ranks share count in parts.
std::size_t tables_of(const RankEvidence& e) {
  const auto part = [](std::size_t bytes, const auto& of) {
    return bytes / std::max<std::size_t>(of.users(), 1);
  };
  std::size_t strings = size_of(*e.strings), stacks = 0, frames = size_of(*e.threads.frames);
  for (const std::string& text : e.strings) {
    strings += text_of(text);
  }
  for (std::size_t i = 0; i < e.stacks.size(); ++i) {
    stacks += (e.stacks[i].size() + 1) * sizeof(std::uint32_t);
  }
  for (const ThreadFrame& f : e.threads.frames) {
    frames += text_of(f.function) + text_of(f.file);
  }
  return part(strings, e.strings) + part(size_of(*e.frames), e.frames) + part(stacks, e.stacks) +
         part(size_of(*e.shape_words), e.shape_words) + part(frames, e.threads.frames);
}

}  // namespace

bool MemoryLimit::take(std::size_t bytes) noexcept {
  std::size_t left = left_.load();
  do {
    if (bytes > left) {
      return false;
    }
  } while (!left_.compare_exchange_weak(left, left - bytes));
  return true;
}

void MemoryLimit::give(std::size_t bytes) noexcept {
  left_.fetch_add(bytes);
}

FileMemory::FileMemory(MemoryLimit& limit) noexcept : limit_(limit) {
  g_current = this;
}

FileMemory::~FileMemory() {
  limit_.give(taken_);
  g_current = nullptr;
}

void FileMemory::take(std::size_t bytes) {
  if (g_current != nullptr) {
    if (!g_current->limit_.take(bytes)) {
      throw OverLimit();
    }
    g_current->taken_ += bytes;
  }
}

void FileMemory::give(std::size_t bytes) noexcept {
  if (g_current != nullptr) {
    bytes = std::min(bytes, g_current->taken_);
    g_current->taken_ -= bytes;
    g_current->limit_.give(bytes);
  }
}

std::size_t memory_of(const RankEvidence& e) {
  std::size_t n = sizeof e + tables_of(e) + size_of(e.groups) + size_of(e.lanes) +
                  size_of(e.records) + size_of(e.notes) + size_of(e.peers) + size_of(e.options) +
                  size_of(e.layers) + size_of(e.threads.modules) + size_of(e.threads.children) +
                  size_of(e.threads.locks) + size_of(e.threads.threads) + size_of(e.device.comms) +
                  size_of(e.device.operations) + size_of(e.device.phases) +
                  size_of(e.device.carried) + text_of(e.ras.answer) + text_of(e.exit.message) +
                  text_of(e.reason) + text_of(e.id.command);
  for (const GroupEvidence& g : e.groups) {
    n += size_of(g.ranks);
  }
  for (const ThreadNotes& t : e.notes) {
    n += text_of(t.note) + size_of(t.spans);
  }
  for (const auto* list : {&e.options, &e.layers}) {
    for (const auto& [name, value] : *list) {
      n += text_of(name) + text_of(value);
    }
  }
  for (const ChildProcess& c : e.threads.children) {
    n += size_of(c.stack);
  }
  for (const ThreadStack& s : e.threads.threads) {
    n += size_of(s.stack) + size_of(s.variables) + text_of(s.name) + text_of(s.syscall_on);
    for (const FrameVariables& v : s.variables) {
      n += size_of(v.values);
    }
  }
  return n;
}

}  // namespace frtrace
