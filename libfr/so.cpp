// so.cpp - libfr.so is the whole of fr_core; this file only gives the linker something to link.
