// job_name.hpp - a job's name as it stands in names of files, and in rings and dumps.
#pragma once

#include <string>

namespace fr {

std::string job_in_files(std::string text);

}  // namespace fr
