// only.hpp - the one record, and the one operation of the device, of a communicator.
#pragma once

#include "../unit/catch.hpp"
#include "host.hpp"

namespace fr::test {

inline RecordCopy only_record(u64 hash) {
  const auto all = records_of(view(), hash);
  REQUIRE(all.size() == 1);
  return all[0];
}

inline DeviceOpCopy only_op(u64 hash) {
  const auto all = device_ops(view(), hash);
  REQUIRE(all.size() == 1);
  return all[0];
}

}  // namespace fr::test
