// store.hpp - PyTorch's store for libfr, over a connection of its own: a store has one lock per
// client, and a rank that waits for a key holds it. Neither the GIL nor Python is needed.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "fr/fr.h"

namespace {

struct OwnStore {
  std::string host;
  int port = 0;
  c10::intrusive_ptr<c10d::TCPStore> client;  // made by the first call, which may wait for it

  c10d::TCPStore& get() {
    if (!client) {
      c10d::TCPStoreOptions options;
      options.port = static_cast<std::uint16_t>(port);
      options.waitWorkers = false;
      options.timeout = std::chrono::seconds(30);
      client = c10::make_intrusive<c10d::TCPStore>(host, options);
    }
    return *client;
  }
};

std::vector<uint8_t> bytes_of(const void* data, size_t bytes) {
  const auto* from = static_cast<const uint8_t*>(data);
  return {from, from + bytes};
}

int64_t copy_out(const std::vector<uint8_t>& from, void* to, size_t room) {
  std::memcpy(to, from.data(), std::min(room, from.size()));
  return static_cast<int64_t>(from.size());
}

// Returns -1 when the store fails: its errors must not reach the training program.
template <class Call>
int64_t of_store(void* self, Call call) noexcept {
  try {
    return call(static_cast<OwnStore*>(self)->get());
  } catch (...) {
    return -1;
  }
}

int store_add(void* self, const char* key, int64_t amount, int64_t* sum) {
  return static_cast<int>(of_store(self, [&](c10d::TCPStore& store) {
    *sum = store.add(key, amount);
    return int64_t{0};
  }));
}

int store_set(void* self, const char* key, const void* data, size_t bytes) {
  return static_cast<int>(of_store(self, [&](c10d::TCPStore& store) {
    store.set(key, bytes_of(data, bytes));
    return int64_t{0};
  }));
}

int64_t store_keep(void* self, const char* key, const void* data, size_t bytes, void* value,
                   size_t room) {
  return of_store(self, [&](c10d::TCPStore& store) {
    return copy_out(store.compareSet(key, {}, bytes_of(data, bytes)), value, room);
  });
}

int64_t store_get(void* self, const char* key, void* value, size_t room) {
  return of_store(self, [&](c10d::TCPStore& store) {
    return store.check({key}) ? copy_out(store.get(key), value, room) : int64_t{0};
  });
}

void store_close(void* self) {
  delete static_cast<OwnStore*>(self);
}

}  // namespace
