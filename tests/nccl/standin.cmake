# The stand-in for libnccl.so.2; also of the benchmarks.
function(fr_standin_nccl name dir)
  find_package(Threads REQUIRED)
  add_library(${name} SHARED ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/standin_nccl.cpp)
  set_target_properties(${name} PROPERTIES OUTPUT_NAME nccl SUFFIX .so.2 NO_SONAME ON
                        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/${dir})
  target_link_options(${name} PRIVATE -Wl,-soname,libnccl.so.2)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/libfr ${PROJECT_SOURCE_DIR}/libfr/include)
  target_link_libraries(${name} PRIVATE fr_flags Threads::Threads dl)
endfunction()
if(NOT TARGET standin_nccl)
  fr_standin_nccl(standin_nccl .)
endif()
