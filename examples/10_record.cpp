// Recording from C++, without Python: a group, operations, a note, a dump.
//
//   cmake --preset dev && cmake --build --preset dev --target example_record
//   FR_DUMP_DIR=/tmp/fr-cpp build/dev/examples/example_record && frtrace -j /tmp/fr-cpp
#include <fr/fr.h>

#include <cstdint>
#include <cstdio>
#include <string_view>

namespace {

uint32_t Intern(std::string_view text) {
  return fr_intern(text.data(), text.size());
}

fr_group_t MakeGroup() {
  const int32_t ranks[] = {0};
  fr_group_info info{};
  info.struct_bytes = sizeof info;
  info.n_ranks = 1;
  info.own_rank = 0;
  info.name = "halo";
  info.desc = "neighbours of the domain";
  info.backend = "mylib";
  info.ranks = ranks;
  return fr_group(&info);
}

// The operation is issued here and completes elsewhere, on any thread, with fr_end(&ticket, ...).
fr_ticket Issue(fr_group_t group, uint32_t op, uint64_t elements) {
  fr_op what{};
  what.struct_bytes = sizeof what;
  what.group = group;
  what.op = op;
  what.kind = FR_COLLECTIVE;
  what.peer = -1;
  what.in_numel = elements;
  what.out_numel = elements;
  fr_ticket ticket{};
  fr_begin(&what, &ticket);
  return ticket;
}

}  // namespace

int main() {
  if (!fr_start()) {
    std::puts("not recording: FR_ENABLE=0 or FR_BUFFER_SIZE=0");
    return 0;
  }
  fr_set_identity(/*rank=*/0, /*world_size=*/1, /*local_rank=*/0);  // no launcher told it
  const fr_group_t group = MakeGroup();
  const uint32_t exchange = Intern("halo_exchange");  // once per name, not once per operation

  for (int step = 0; step < 100; ++step) {
    fr_step(step);
    fr_ticket ticket = Issue(group, exchange, 4096);
    fr_started(&ticket);
    fr_end(&ticket, FR_OK, nullptr);
  }

  constexpr std::string_view kNote = "about to hang";
  fr_note(kNote.data(), kNote.size());
  fr_ticket stuck = Issue(group, exchange, 4096);

  char path[4096];
  if (fr_dump("example", path, sizeof path)) {
    std::puts(path);
  }
  fr_end(&stuck, FR_OK, nullptr);
  return 0;
}
