// silence.hpp - what the recorder and frtrace both call a job that stands still with no operation in
// flight.
#pragma once

namespace fr {

// Begins the reason of a dump that was taken because no rank issued an operation for too long.
inline constexpr const char kSilentReason[] = "no operation issued for";
// The row of learned deadlines that holds how long a rank was silent before, by its text.
inline constexpr const char kSilentSite[] = "between operations";

}  // namespace fr
