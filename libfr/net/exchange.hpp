// exchange.hpp - how the nodes of a job get the list of all of them from a store that they share.
//
//   fr/<job>/<attempt>/ranks    number of ranks that are counted in
//                      /nodes   number of nodes; what it was before is a node's place in the list
//                      /token   the first that a node proposes
//                      /<node>  address of a node, 64 bytes (the list's row)
//                      /listed  number of nodes with a row there
//                      /list    all rows, by the node that is first in the list
//
// One store operation after the other, none that waits: a node that never comes costs a time limit.
// A node's progress stands in its control page, so that another process of it can go on.
#pragma once

#include <string>

#include "fr/fr.h"
#include "net/address.hpp"
#include "watch/control_page.hpp"

namespace fr::net {

enum class Step {
  kAgain,    // look again later
  kAddress,  // there are several nodes: give set_endpoint() ours
  kAlone,    // there is one node
  kListed,   // the page has the list
  kFailed
};

class Exchange {
 public:
  Exchange(ControlPage& control, const std::string& job, i32 attempt, i32 world_size,
           const std::string& host);

  // Does what can be done now. May block in the store; may throw std::bad_alloc.
  Step step(const fr_store& store, u64 now_ns);
  void set_endpoint(const Address& address, u16 port) noexcept;
  const char* why() const noexcept { return why_; }  // it failed

 private:
  Step count(const fr_store& store, u64 now_ns);
  Step list(const fr_store& store, u64 now_ns);
  bool publish(const fr_store& store);
  bool make_list(const fr_store& store, u32 n, std::string& rows);
  Step take_list(const std::string& rows);
  std::string key(const std::string& name) const { return prefix_ + name; }
  Step fail(const char* why) noexcept;

  ControlPage& control_;
  std::string prefix_;
  std::string host_;
  i32 world_size_;
  u64 began_ns_ = 0;
  bool counted_ = false;
  bool has_endpoint_ = false;
  Address address_;
  u16 port_ = 0;
  const char* why_ = "";
};

}  // namespace fr::net
