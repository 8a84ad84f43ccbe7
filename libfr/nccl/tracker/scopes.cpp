// scopes.cpp - the framework's side: what its call asks of NCCL belongs to its record.
#include "nccl/tracker/state.hpp"

namespace fr::nccl {

void enter(const fr_ticket& ticket) noexcept {
  Tracker* s = tracker_in_force();
  if (s == nullptr && g_library_version.load(kRelaxed) != 0 && ticket.ticket != 0 && ready())
      [[unlikely]] {
    s = tracker_in_force();  // the first operation may be what makes the communicator
  }
  Thread* t = s != nullptr ? own_thread(*s) : nullptr;
  if (t == nullptr) {
    return;
  }
  if (t->n_scopes++ < kScopes) {
    t->scope[t->n_scopes - 1] = {ticket, 0};
  }
}

bool leave() noexcept {
  Tracker* s = tracker_in_force();
  Thread* t = s != nullptr ? own_thread(*s) : nullptr;
  if (t == nullptr || t->n_scopes == 0) {
    return false;
  }
  if (t->n_scopes-- > kScopes) {
    return false;
  }
  const Handle handle = t->scope[t->n_scopes].op;
  u32 slot = 0;
  DeviceOp* op = handle != 0 ? find_op(*s, handle, slot) : nullptr;
  if (op == nullptr) {
    return handle != 0;  // over already, its row another's
  }
  if ((op->flags.load(kRelaxed) & kDevUnseen) != 0 && !has(s->op[slot], kWrapped | kFollowed)) {
    finish(*s, slot, generation_of(handle), State::kReleased, 0, 0);
    return true;
  }
  change(s->op[slot], generation_of(handle), kClose);
  try_complete(*s, slot, generation_of(handle), false);
  return true;
}

fr_ticket scope_ticket() noexcept {
  Tracker* s = tracker_in_force();
  Thread* t = s != nullptr ? own_thread(*s) : nullptr;
  return t != nullptr && t->n_scopes > 0 && t->n_scopes <= kScopes
             ? t->scope[t->n_scopes - 1].ticket
             : fr_ticket{};
}

}  // namespace fr::nccl
