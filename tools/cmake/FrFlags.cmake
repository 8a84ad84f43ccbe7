# Flags of every target of the project, as one interface target.
add_library(fr_flags INTERFACE)
target_compile_options(fr_flags INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wcast-align
                                          -Wimplicit-fallthrough -fno-omit-frame-pointer)
if(FR_WERROR)
  target_compile_options(fr_flags INTERFACE -Werror)
endif()
if(FR_SANITIZE)
  target_compile_options(fr_flags INTERFACE -fsanitize=${FR_SANITIZE} -fno-sanitize-recover=all)
  target_link_options(fr_flags INTERFACE -fsanitize=${FR_SANITIZE})
endif()
