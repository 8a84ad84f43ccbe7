// version.hpp - the version of what is built, with the commit: "0.2.0+g1a2b3c4".
#pragma once

namespace fr {

const char* version_text() noexcept;  // of the file that tools/cmake/version.cmake writes

}  // namespace fr
