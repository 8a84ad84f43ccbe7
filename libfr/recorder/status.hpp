// status.hpp - fr_status as JSON.
#pragma once

#include <string>

namespace fr {
std::string status_json();
}
