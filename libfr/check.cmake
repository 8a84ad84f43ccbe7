# Run after libfr.so is linked. Three laws of the library hold by this check and by nothing else:
#
#   1. libfr.so exports only fr_* and what NCCL looks up, and needs no torch, CUDA, NCCL or Python;
#   2. a folder includes only the folders that its row of the table names, and the table has no circle;
#   3. code that may run in a signal handler, or on a thread that holds any lock, calls no malloc, lock
#      or stdio, neither itself nor through another file of libfr.
#
# cmake -DLIB=libfr.so -DOBJECTS=<file that lists the objects> -DSRC=libfr -DSANITIZE= -DLIBCXX= -P check.cmake
cmake_minimum_required(VERSION 3.25)
file(STRINGS ${OBJECTS} OBJECTS)

# ---------------------------------------------------------------- exports

execute_process(COMMAND nm -D --defined-only ${LIB} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^\n]+" lines "${symbols}")
foreach(line IN LISTS lines)
  if(NOT line MATCHES " [A-Za-z] (fr_[a-z_]+|ncclProfiler_v[1-7])$")
    list(APPEND foreign "${line}")
  endif()
endforeach()
if(foreign AND NOT SANITIZE)
  message(FATAL_ERROR "libfr.so exports more than fr_* and NCCL's plugin symbols:\n${foreign}")
endif()

foreach(name fr_start fr_begin fr_end fr_get_api)
  if(NOT symbols MATCHES " T ${name}\n")
    message(FATAL_ERROR "libfr.so does not export ${name}")
  endif()
endforeach()

execute_process(COMMAND readelf -d ${LIB} OUTPUT_VARIABLE dynamic COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "NEEDED[^\n]*" needed "${dynamic}")
foreach(line IN LISTS needed)
  if(line MATCHES "torch|c10|cuda|nccl|python")
    message(FATAL_ERROR "libfr.so must not need: ${line}")
  endif()
endforeach()

# ---------------------------------------------------------------- include directions

# folder: what it may include besides itself, fr/fr.h and the system's headers. Listed from the bottom:
# a row names only folders above it, so the table cannot have a circle.
set(folders format record sample interpose recorder watch net stop cuda nccl)
set(format_may)
set(record_may format)
set(sample_may format record)
set(interpose_may format)
set(recorder_may format record sample)
set(watch_may format record sample recorder)
set(net_may format record sample recorder watch)
set(stop_may format record sample recorder watch)
set(cuda_may format record sample recorder interpose)
set(nccl_may format record sample recorder interpose watch cuda)

include(${SRC}/../tools/cmake/include_table.cmake)
check_includes(${SRC} fr include)

# ---------------------------------------------------------------- async-signal-safe code

# Sanitizers put calls of their own into every object.
if(SANITIZE)
  return()
endif()

# Code that may run in a signal handler or on the record path. The encoder runs on the watchdog's
# thread while another thread may hold malloc's lock for ever, so the same rules apply to it.
set(safe_files
    "^sample/" "^stop/" "^format/" "^record/"
    "^watch/(requests|ring_copier|incident|durable_write|verdict|spawn|error_file|deadlines)\\.cpp" "^net/(message|protocol)\\.cpp"
    "^recorder/(current|in_flight)\\.cpp")
# Code of the watchdog's thread: snprintf for its log lines is all that it may do beyond that.
set(watchdog_files 
    "^watch/(watchdog|patience|silence|slow_exit|absent|attend|attendance|sites|late_rank|main_thread|slower_steps|agreement(_nodes|_samples|_words)?|mismatch|salvage|leftovers|follower|dump_store|writer_thread|oom)\\.cpp"
    "^net/(endpoint|socket)\\.cpp" "^recorder/(log|clock_anchor)\\.cpp")

set(forbidden "^(malloc|calloc|realloc|free|aligned_alloc|posix_memalign|strdup|_Zn[wa].*|_Zd[la].*|\
pthread_mutex_.*|pthread_rwlock_.*|pthread_cond_.*|pthread_once|__cxa_guard_acquire|__cxa_throw|\
__cxa_allocate_exception|dlopen|dlsym|dladdr|dl_iterate_phdr|getenv|setenv|opendir|readdir|backtrace|\
localtime.*|strerror|getaddrinfo)$")
if(LIBCXX)  # its headers throw where libstdc++ calls its library to, e.g. in string_view's substr
  string(REPLACE "__cxa_throw|__cxa_allocate_exception|" "" forbidden "${forbidden}")
endif()
set(stdio "^(f?printf|v?f?printf|v?sn?printf|puts|fputs|putchar|fopen|fclose|fread|fwrite|fflush|perror|\
__printf_chk|__s?n?printf_chk|__v?sn?printf_chk|__v?f?printf_chk|_ZNSo.*|_ZNSt.*stream.*)$")

# Symbols that both may name though their file is ordinary code, each with its reason.
set(ordinary
    _ZN2fr6kPartsE)  # the table of parts; what its functions may do stands in recorder/parts.hpp

# Matches the object of libfr/a/b.cpp by its end: .../a/b.cpp.o
function(objects_of patterns out)
  set(found "")
  foreach(object IN LISTS OBJECTS)
    string(REGEX REPLACE "^.*/CMakeFiles/[a-z_]+\\.dir/(\\./)?(.*)\\.o$" "\\2" source "${object}")
    foreach(pattern IN LISTS patterns)
      if(source MATCHES "${pattern}")
        list(APPEND found ${object})
      endif()
    endforeach()
  endforeach()
  set(${out} ${found} PARENT_SCOPE)
endfunction()

function(check_calls objects forbidden provided why)
  if(NOT objects)
    message(FATAL_ERROR "check.cmake finds no object to check: ${why}")
  endif()
  set(wrong "")
  foreach(object IN LISTS objects)
    get_filename_component(name ${object} NAME)
    execute_process(COMMAND nm -u ${object} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
    string(REGEX MATCHALL "[A-Za-z_][A-Za-z0-9_.]*\n" symbols "${symbols}")
    foreach(symbol IN LISTS symbols)
      string(STRIP "${symbol}" symbol)
      foreach(list IN LISTS forbidden)
        if(symbol MATCHES "${list}")
          string(APPEND wrong "  ${name} calls ${symbol}\n")
        endif()
      endforeach()
      if(symbol MATCHES "^_ZN?K?2fr" AND NOT symbol IN_LIST provided)
        string(APPEND wrong "  ${name} needs ${symbol}, whose file is not held to the same\n")
      endif()
    endforeach()
  endforeach()
  if(wrong)
    message(FATAL_ERROR "${why}:\n${wrong}")
  endif()
endfunction()

function(defined_in objects out)
  execute_process(COMMAND nm -g --defined-only ${objects} OUTPUT_VARIABLE symbols
                  COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[A-Za-z_][A-Za-z0-9_.]*\n" symbols "${symbols}")
  string(REGEX REPLACE "\n" "" symbols "${symbols}")
  set(${out} ${symbols} PARENT_SCOPE)
endfunction()

# glibc 2.28 is the oldest that wheels run on; a build against a newer one would not notice.
execute_process(COMMAND nm -u ${OBJECTS} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "U (strerror(desc|name)_np|sig(abbrev|descr)_np|gettid|tgkill|getcpu|closefrom|\
close_range|execveat|_Fork|pidfd_[a-z_]+|process_m[a-z]+|epoll_pwait2|mallinfo2|_dl_find_object|\
strlcpy|strlcat|arc4random[a-z_]*)\n" younger "${symbols}")
if(younger)
  message(FATAL_ERROR "libfr calls what came after glibc 2.28: ${younger}")
endif()

objects_of("${safe_files}" safe)
objects_of("${watchdog_files}" watchdog)
defined_in("${safe}" provided)
check_calls("${safe}" "${forbidden};${stdio}" "${provided};${ordinary}"
            "code of libfr that must be async-signal-safe is not")
list(APPEND watchdog ${safe})
defined_in("${watchdog}" provided)
check_calls("${watchdog}" "${forbidden}" "${provided};${ordinary}"
            "the watchdog's thread of libfr may meet a lock or an allocation")
