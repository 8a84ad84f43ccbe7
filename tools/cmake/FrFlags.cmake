# Flags of every target of the project, as one interface target.
add_library(fr_flags INTERFACE)
target_compile_options(fr_flags INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wcast-align
                                          -Wimplicit-fallthrough -fno-omit-frame-pointer)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 reports that the parts of std::string's own operator+ overlap.
  target_compile_options(fr_flags INTERFACE -Wno-restrict)
endif()
if(FR_WERROR)
  target_compile_options(fr_flags INTERFACE -Werror)
endif()
if(FR_SANITIZE)
  target_compile_options(fr_flags INTERFACE -fsanitize=${FR_SANITIZE} -fno-sanitize-recover=all)
  target_link_options(fr_flags INTERFACE -fsanitize=${FR_SANITIZE})
  if(FR_SANITIZE MATCHES undefined)
    # Checks at each access take a third of the time to compile, and AddressSanitizer stops at a null
    # pointer, too. libfr keeps them: what it reads and writes is laid out in shared memory.
    target_compile_options(fr_flags INTERFACE
      $<$<BOOL:$<TARGET_PROPERTY:FR_BATCHES>>:-fno-sanitize=null,alignment,vptr>)
  endif()
  if(FR_SANITIZE MATCHES address)
    # Without it each of 800 processes begins with 4 million relocations of what the checks know.
    target_link_options(fr_flags INTERFACE
      $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-no-pie>)
  endif()
endif()

# With FR_UNITY the target's sources are compiled some at a time, with the standard library's headers
# read once. libfr is excluded: its objects are checked one by one.
function(fr_batches target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${FR_UNITY} UNITY_BUILD_BATCH_SIZE 6
                                             FR_BATCHES ON)
  if(FR_UNITY)
    target_precompile_headers(${target} PRIVATE
      <algorithm> <charconv> <chrono> <filesystem> <fstream> <functional> <map> <memory> <optional>
      <set> <span> <sstream> <string> <string_view> <unordered_map> <variant> <vector>)
  endif()
endfunction()
