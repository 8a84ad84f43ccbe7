// encode.cpp - a region into a dump: groups, lanes, records, identity.
#include "format/encode.hpp"

#include <cstring>
#include <iterator>

#include "format/codes.hpp"
#include "format/packer.hpp"
#include "format/ticks.hpp"
#include "fr/fr.h"

namespace fr {

using namespace packing;
using schema::get;

namespace {

void pack_salvage(Packer& p, const Header& h, const DumpFacts& facts) {
  text(p, "salvage");
  if (facts.salvage == dump::Salvage::kNone) {
    p.pack_nil();
  } else {
    p.pack_map(4);
    key_uint(p, "last_sign_unix_ns", get(h.heartbeat_unix_ns));
    key_int(p, "oom_kills", facts.oom_kills);
    key_int(p, "by_rank", facts.salvaged_by);
    text(p, "why");
    text(p, word(facts.salvage));
  }
}

void pack_layers(Packer& p, const Header& h) {
  text(p, "layers");
  const u32 n_layers = h.n_layers.load() < std::size(h.layers)
                           ? h.n_layers.load()
                           : static_cast<u32>(std::size(h.layers));
  p.pack_map(n_layers);
  for (u32 i = 0; i < n_layers; ++i) {
    text(p, schema::fixed(h.layers[i].name));
    char layer[sizeof h.layers[i].text];
    text(p, layer_text(h.layers[i], layer));
  }
}

void pack_options(Packer& p, std::string_view table) {
  u32 n = 0;
  for (const char c : table) {
    n += c == '\n' ? 1 : 0;
  }
  text(p, "options");
  p.pack_array(n);
  while (n-- > 0) {
    const std::string_view line = table.substr(0, table.find('\n'));
    table.remove_prefix(line.size() + 1);
    const std::size_t tab = line.rfind('\t');
    const std::string_view pair = line.substr(0, tab);
    const std::size_t equals = pair.find('=');
    p.pack_array(3);
    text(p, pair.substr(0, equals));
    text(p, equals < pair.size() ? pair.substr(equals + 1) : "");
    text(p, tab < line.size() ? line.substr(tab + 1) : "");
  }
}

void pack_clock(Packer& p, const Header& h, const Times& times) {
  text(p, "clock");
  p.pack_map(3);
  text(p, "kind");
  text(p, word(h.clock_kind));
  key_uint(p, "base_unix_ns", times.base());
  text(p, "anchors");
  p.pack_array(2);
  for (const Anchor* a : {&h.first, &h.last}) {
    u64 ticks = 0;
    u64 unix_ns = 0;
    u64 mono = 0;
    read_anchor(*a, ticks, unix_ns, mono);
    p.pack_array(3);
    p.pack_uint64(ticks);
    p.pack_uint64(unix_ns);
    p.pack_uint64(mono);
  }
}

// Also counts, per group and over all, what the ring still holds.
void pack_records(Packer& p, const View& view, const Times& times, schema::KeptOfGroup* per_group,
                  schema::LossCells& losses) {
  std::memset(static_cast<void*>(per_group), 0, sizeof(schema::KeptOfGroup) * kGroups);
  RecordCopy r;
  pack_table(p, times, "records", schema::kRecords, view.n_slots(), [&](u32 slot, auto row) {
    const Slot found = view.read(slot, r);
    if (found != Slot::kWhole) {
      losses.torn += found == Slot::kTorn ? 1 : 0;
      return false;
    }
    ++losses.records;
    losses.shapes_overwritten += r.shape_lost ? 1 : 0;
    if (r.payload.group < kGroups) {
      schema::KeptOfGroup& g = per_group[r.payload.group];
      ++g.records;
      if (r.payload.kind == FR_COLLECTIVE) {
        g.first = g.kept == 0 || r.payload.seq < g.first ? r.payload.seq : g.first;
        g.last = r.payload.seq > g.last ? r.payload.seq : g.last;
        ++g.kept;
      }
    }
    row(r);
    return true;
  });
}

void pack_groups(Packer& p, const View& view, const Times& times,
                 const schema::KeptOfGroup* per_group, schema::LossCells& losses) {
  // a later version's table may be longer than what is counted here
  const u32 n_groups = view.n_groups() < kGroups ? view.n_groups() : kGroups;
  pack_table(p, times, "groups", schema::kGroups, n_groups, [&](u32 i, auto row) {
    const GroupRow& g = *view.group(i);
    const u64 recorded = (get(g.issued) & kSeqMask) + get(g.p2p_issued) + get(g.lifecycle_issued);
    const u64 present = per_group[i].records + get(g.dropped);
    const u64 overwritten = i != 0 && recorded > present ? recorded - present : 0;
    losses.overwritten += overwritten;
    row(schema::GroupCells{i, g, view.group_ranks(g), per_group[i], overwritten});
    return true;
  });
}

void pack_lanes(Packer& p, const View& view, const Times& times) {
  pack_table(p, times, "lanes", schema::kLanes, view.n_lanes(), [&](u32 i, auto row) {
    const LaneRow* lane = view.lane(i);
    if (lane != nullptr) {
      row(schema::LaneCells{get(lane->key), *lane});
    }
    return lane != nullptr;
  });
}

// Tables for the ids in the sections before.
void pack_tables(Packer& p, const View& view) {
  const u32 n_stacks = view.n_stacks();
  text(p, "stacks");
  p.pack_array(n_stacks);
  for (u32 i = 0; i < n_stacks; ++i) {
    const auto frames = view.stack(i);
    p.pack_array(static_cast<u32>(frames.size()));
    for (const u32 f : frames) {
      p.pack_uint32(f);
    }
  }
  const u32 n_frames = view.n_frames();
  text(p, "frames");
  p.pack_array(n_frames);
  for (u32 i = 0; i < n_frames; ++i) {
    const FrameRow f = view.frame(i);
    p.pack_array(3);
    p.pack_uint32(f.file);
    p.pack_uint32(f.func);
    p.pack_uint32(f.line);
  }
  const u32 n_strings = view.n_strings();
  text(p, "strings");
  p.pack_array(n_strings);
  for (u32 i = 0; i < n_strings; ++i) {
    text(p, view.string(i));
  }
}

}  // namespace

void packing::cell(Packer& p, const Times&, schema::RankRuns runs) {
  if (runs.words.empty()) {
    p.pack_nil();
    return;
  }
  p.pack_array(static_cast<u32>(runs.words.size() / 3));
  for (std::size_t w = 0; w + 2 < runs.words.size(); w += 3) {
    p.pack_array(3);
    p.pack_uint32(runs.words[w]);
    p.pack_uint32(runs.words[w + 1]);
    p.pack_int32(static_cast<i32>(runs.words[w + 2]));
  }
}

void packing::cell(Packer& p, const Times&, schema::Shape shape) {
  const RecordCopy& r = shape.record;
  if (r.shape == nullptr) {
    p.pack_nil();
  } else if (r.payload.kind == FR_NOTE) {
    text(p, {reinterpret_cast<const char*>(r.shape), r.n_shape});
  } else {
    p.pack_array(r.n_shape);
    for (u32 i = 0; i < r.n_shape; ++i) {
      p.pack_uint32(r.shape[i]);
    }
  }
}

void ByteSink::write(const char* data, std::size_t n) noexcept {
  total += n;
  while (n > 0) {
    if (used == kChunkBytes) {
      flush();
    }
    const std::size_t part = n < kChunkBytes - used ? n : kChunkBytes - used;
    std::memcpy(chunk + used, data, part);
    used += part;
    data += part;
    n -= part;
  }
}

void ByteSink::flush() noexcept {
  take(context, chunk, used);
  used = 0;
}

void pack_dump(ByteSink& to, const View& view, const DumpFacts& facts,
               schema::KeptOfGroup* per_group) noexcept {
  const Header& h = view.header();
  const Times times(view);
  Packer p(to);
  p.pack_map(27);
  text(p, "format");
  text(p, "fr.dump");
  key_int(p, "version", 1);
  text(p, "identity");
  pack_map(p, times, schema::kIdentity, h);
  text(p, "reason");
  text(p, facts.reason);
  key_uint(p, "incident", facts.incident);
  text(p, "trigger");
  text(p, facts.trigger);
  key_uint(p, "written_unix_ns", unix_now_ns());
  pack_salvage(p, h, facts);
  pack_options(p, view.options());
  pack_layers(p, h);
  pack_clock(p, h, times);
  // Records before the tables they point into: whatever they name is then published.
  schema::LossCells losses{h};
  pack_records(p, view, times, per_group, losses);
  pack_groups(p, view, times, per_group, losses);
  pack_lanes(p, view, times);
  pack_device(p, view, times);
  text(p, "ras");
  if (facts.ras != nullptr) {
    pack_map(p, times, schema::kRas, *facts.ras);
  } else {
    p.pack_nil();
  }
  text(p, "nodes");
  if (facts.nodes != nullptr) {
    pack_map(p, times, schema::kNodes, *facts.nodes);
  } else {
    p.pack_nil();
  }
  pack_notes(p, view, times);
  pack_exit(p, h, times);
  pack_peers(p, facts, times);
  text(p, "losses");
  pack_map(p, times, schema::kLosses, losses);
  pack_tables(p, view);
  pack_threads(p, facts.threads, times);
  pack_table(p, times, "deadlines", schema::kDeadlines, view.n_sites(), [&](u32 i, auto row) {
    const SiteRow* site = view.site(i);
    if (site != nullptr) {
      row(*site);
    }
    return site != nullptr;
  });
}

}  // namespace fr
