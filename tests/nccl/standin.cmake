# The stand-in for libnccl.so.2; also of the benchmarks.
if(NOT TARGET standin_nccl)
  find_package(Threads REQUIRED)
  add_library(standin_nccl SHARED ${CMAKE_CURRENT_LIST_DIR}/standin_nccl.cpp)
  set_target_properties(standin_nccl PROPERTIES OUTPUT_NAME nccl SUFFIX .so.2 NO_SONAME ON
                        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})
  target_link_options(standin_nccl PRIVATE -Wl,-soname,libnccl.so.2)
  target_include_directories(standin_nccl PRIVATE ${PROJECT_SOURCE_DIR}/libfr ${PROJECT_SOURCE_DIR}/libfr/include)
  target_link_libraries(standin_nccl PRIVATE fr_flags Threads::Threads dl)
endif()
