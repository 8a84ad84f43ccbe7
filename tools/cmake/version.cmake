# Writes OUT, the source of fr::version_text(): "0.2.0+g1a2b3c4", of a source package the commit that
# it was made of. Run at every build; OUT keeps its time where nothing changed.
#   cmake -DVERSION=0.2.0 -DSOURCE=<root> -DOUT=version.cpp -P version.cmake
set(commit "")
if(EXISTS ${SOURCE}/third_party/commit)
  file(STRINGS ${SOURCE}/third_party/commit commit LIMIT_COUNT 1)
elseif(EXISTS ${SOURCE}/.git)
  execute_process(COMMAND git -C ${SOURCE} rev-parse --short=9 HEAD OUTPUT_VARIABLE commit ERROR_QUIET
                  OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
if(commit MATCHES "^[0-9a-f]+$")
  string(APPEND VERSION "+g${commit}")
endif()
set(text "#include \"format/version.hpp\"\n\nnamespace fr {\n\nconst char* version_text() noexcept {\n  return \"${VERSION}\";\n}\n\n}  // namespace fr\n")
set(before "")
if(EXISTS ${OUT})
  file(READ ${OUT} before)
endif()
if(NOT before STREQUAL text)
  file(WRITE ${OUT} "${text}")
endif()
