// nodes.hpp - how net/ takes part in a recorder: the thread fr-nodes of each rank of a job of several
// nodes. One rank per node owns the endpoint; the others stand by.
#pragma once

#include "format/layout.hpp"
#include "fr/fr.h"

namespace fr {
struct NodesAnswer;
struct Recorder;
}  // namespace fr

namespace fr::net {

// fr_join_nodes(). r: nullptr where nothing is recorded.
void join_nodes(Recorder* r, const fr_store& store) noexcept;

// For kParts.
void forget_nodes(Recorder& r);  // a forked child's recorder does not use its parent's
void wake_endpoint(Recorder& r) noexcept;
const NodesAnswer* nodes_answer(u64 incident) noexcept;
void leave_nodes() noexcept;

}  // namespace fr::net
