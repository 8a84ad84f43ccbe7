# A toolchain of PyPI's ziglang: clang, libc++ and the C library of FR_TARGET, e.g.
# x86_64-linux-gnu.2.28 (what runs on glibc 2.28 and newer) or x86_64-linux-musl (static).
#   FR_ZIG=<path of zig> cmake --toolchain tools/cmake/zig.cmake -DFR_TARGET=...
set(FR_TARGET x86_64-linux-gnu.2.28 CACHE STRING "Processor, system, C library and its version")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES FR_TARGET)
string(REGEX MATCH "^[^-]+" CMAKE_SYSTEM_PROCESSOR ${FR_TARGET})
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_C_COMPILER "$ENV{FR_ZIG}" cc)
set(CMAKE_CXX_COMPILER "$ENV{FR_ZIG}" c++)
# The machine's ar, if there is one, may not know the objects of another processor.
foreach(language C CXX)
  set(CMAKE_${language}_ARCHIVE_CREATE "\"$ENV{FR_ZIG}\" ar qc <TARGET> <LINK_FLAGS> <OBJECTS>")
  set(CMAKE_${language}_ARCHIVE_FINISH "\"$ENV{FR_ZIG}\" ranlib <TARGET>")
endforeach()
# zig adds checks of undefined behaviour that trap.
set(CMAKE_C_FLAGS_INIT "-target ${FR_TARGET} -fno-sanitize=all")
set(CMAKE_CXX_FLAGS_INIT "-target ${FR_TARGET} -fno-sanitize=all")
# Nothing of the machine that builds: its headers are of another C library.
set(CMAKE_FIND_ROOT_PATH ${CMAKE_CURRENT_LIST_DIR}/../../third_party)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
# Symbols of debugging take ten times the size.
foreach(kind EXE SHARED MODULE)
  set(CMAKE_${kind}_LINKER_FLAGS_INIT "-s")
endforeach()
