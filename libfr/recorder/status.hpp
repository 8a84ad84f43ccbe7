// status.hpp - fr_status as JSON.
#pragma once

#include <string>

#include "format/layout.hpp"

namespace fr {
// incident, last_dump ("" none): as the watchdog has them.
std::string status_json(u64 incident, const char* last_dump);
}  // namespace fr
