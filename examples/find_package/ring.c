/* Leaves a ring with one note in $FR_SHM_DIR, and a dump in $FR_DUMP_DIR. */
#include <fr/fr.h>
#include <stdio.h>

int main(void) {
  char path[4096] = "none";
  fr_set_identity(0, 1, 0);
  int started = fr_start();
  fr_note("hello", 5);
  fr_dump("an example", path, sizeof path);
  return printf("fr %s, started %d, dump %s\n", fr_version(), started, path) < 0;
}
