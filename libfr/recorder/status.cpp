// status.cpp - fr.status() as JSON.
#include "recorder/status.hpp"

#include "format/schema.hpp"
#include "fr/fr.h"
#include "recorder/in_flight.hpp"
#include "recorder/recorder.hpp"
#include "recorder/start.hpp"

namespace fr {
namespace {

std::string quoted(std::string_view s) {
  std::string out = "\"";
  for (const char c : s) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", c);
      out += code;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

void add(std::string& out, const char* key, const std::string& json) {
  if (out.back() != '{') {
    out += ", ";
  }
  out += quoted(key) + ": " + json;
}

std::string options_json(std::string_view table) {
  std::string out = "{";
  while (!table.empty()) {
    const std::string_view line = table.substr(0, table.find('\n'));
    table.remove_prefix(line.size() < table.size() ? line.size() + 1 : line.size());
    const std::size_t equals = line.find('=');
    const std::size_t tab = line.rfind('\t');
    if (equals == std::string_view::npos || tab == std::string_view::npos) {
      continue;
    }
    add(out, std::string(line.substr(0, equals)).c_str(),
        "{\"value\": " + quoted(line.substr(equals + 1, tab - equals - 1)) +
            ", \"source\": " + quoted(line.substr(tab + 1)) + "}");
  }
  return out + "}";
}

// Reports of the device library; null while no communicator was made.
std::string device_json(const View& view) {
  const Device* d = view.device();
  if (!view.has_device()) {
    return "null";
  }
  u64 timed = 0;
  DeviceOpCopy op;
  for (u32 i = 0; i < view.n_device_ops(); ++i) {
    timed += view.read_device_op(i, op) && op.device_start_ns != 0 && op.device_end_ns != 0 ? 1 : 0;
  }
  std::string out = "{";
  add(out, "library_version", std::to_string(d->library_version.load()));
  add(out, "plugin_api", std::to_string(d->plugin_api.load()));
  add(out, "events", std::to_string(d->events.load()));
  add(out, "calls_hooked", std::to_string(d->hooked.load()));
  add(out, "timed_operations", std::to_string(timed));
  std::string losses = "{";
  add(losses, "comms_lost", std::to_string(d->comms_lost.load()));
  add(losses, "ops_lost", std::to_string(d->ops_lost.load()));
  add(losses, "phases_lost", std::to_string(d->phases_lost.load()));
  add(losses, "stale_handles", std::to_string(d->stale_handles.load()));
  add(losses, "foreign_handles", std::to_string(d->foreign_handles.load()));
  add(losses, "unknown_events", std::to_string(d->unknown_events.load()));
  add(losses, "unmatched", std::to_string(d->unmatched.load()));
  add(losses, "threads_lost", std::to_string(d->threads_lost.load()));
  if (const Cuda* c = view.cuda()) {
    add(losses, "events_exhausted", std::to_string(c->exhausted.load()));
    add(losses, "events_captured", std::to_string(c->captured.load()));
    add(losses, "events_no_context", std::to_string(c->no_context.load()));
    add(losses, "events_refused", std::to_string(c->refused.load()));
    add(losses, "events_unread", std::to_string(c->unread.load()));
    add(losses, "ends_unfollowed", std::to_string(c->unfollowed.load()));
    add(losses, "ends_unasked", std::to_string(c->unasked.load()));
    add(losses, "events_untied", std::to_string(c->untied.load()));
    add(out, "followed", std::to_string(c->followed.load()));
    add(out, "event_pairs", std::to_string(c->pairs.load()));
    add(out, "events_timed", std::to_string(c->timed.load()));
    add(out, "observer_in", quoted(view.string(c->call.load())));  // "" in no call of CUDA
    add(out, "error",
        c->error_ready.load() == 0 ? "null" : quoted(view.string(c->error_name.load())));
  }
  add(out, "losses", losses + "}");
  return out + "}";
}

// The times learned for each call site; they are the longest, in milliseconds.
std::string deadlines_json(const View& view) {
  std::string out = "[";
  for (u32 i = 0; i < view.n_sites(); ++i) {
    const SiteRow* site = view.site(i);
    if (site == nullptr) {
      continue;
    }
    std::string row = "{";
    std::apply(
        [&](const auto&... c) {
          const auto cell = [&](const char* name, auto value) {
            if constexpr (std::is_integral_v<decltype(value)>) {
              add(row, name, std::to_string(value));
            } else {
              add(row, name, quoted(value));
            }
          };
          (cell(c.name, c.get(*site)), ...);
        },
        schema::kDeadlines);
    out += (out.size() == 1 ? "" : ", ") + row + "}";
  }
  return out + "]";
}

}  // namespace

std::string status_json(u64 incident, const char* last_dump) {
  const Recorder* r = recorder();
  std::string out = "{";
  if (r == nullptr) {
    add(out, "on", "false");
    add(out, "why", quoted(off_reason()));
    add(out, "rank", std::to_string(read_identity().rank));
    add(out, "options", options_json(read_options().table));
    return out + "}";
  }
  const Header& h = r->region.header();
  add(out, "on", hot() != nullptr ? "true" : "false");
  add(out, "why", quoted(hot() != nullptr ? "recording" : "shut down"));
  add(out, "ring", r->region.name.empty() ? "null" : quoted(r->region.dir + "/" + r->region.name));
  add(out, "memory", quoted(r->region.anonymous ? "anonymous" : "shm"));
  if (r->region.anonymous) {
    add(out, "memory_why", quoted(r->region.why));
  }
  if (h.proc_start == 0) {
    add(out, "proc_why", quoted(kNoProc));
  }
  add(out, "ring_bytes", std::to_string(r->region.bytes));
  add(out, "records", std::to_string(h.n_records));
  add(out, "dump_dir", quoted(r->options.dump_dir));
  add(out, "last_dump", last_dump[0] != '\0' ? quoted(last_dump) : "null");
  add(out, "incident", std::to_string(incident));
  // of this process: what was alarmed of and went on
  add(out, "false_warnings", std::to_string(h.false_warnings.load()));
  add(out, "false_dumps", std::to_string(h.false_dumps.load()));
  add(out, "deadlines", deadlines_json(r->view));
  add(out, "job", quoted(h.job));
  add(out, "attempt", std::to_string(h.attempt));
  add(out, "rank", std::to_string(h.rank.load()));
  add(out, "local_rank", std::to_string(h.local_rank.load()));
  add(out, "world_size", std::to_string(h.world_size.load()));
  add(out, "host", quoted(h.host));
  add(out, "pid", std::to_string(h.pid));
  add(out, "clock", quoted(word(h.clock_kind)));
  std::string layers = "{";
  for (u32 i = 0; i < h.n_layers.load(); ++i) {
    char text[sizeof h.layers[i].text];
    if (const auto said = layer_text(h.layers[i], text); !said.empty()) {
      add(layers, h.layers[i].name, quoted(said));
    }
  }
  add(out, "layers", layers + "}");
  add(out, "options", options_json(r->options.table));

  // records kept and lost per group
  const u32 n = r->view.n_groups();
  std::string kept_all;
  std::vector<u64> kept(n);
  auto copy = std::make_unique<RecordCopy>();
  for (u32 slot = 0; slot < r->view.n_slots(); ++slot) {
    if (r->view.read(slot, *copy) == Slot::kWhole && copy->payload.group < n) {
      ++kept[copy->payload.group];
    }
  }
  std::string groups = "[";
  for (u32 i = 0; i < n; ++i) {
    const GroupRow& g = *r->view.group(i);
    const u64 issued =
        (g.issued.load() & kSeqMask) + g.p2p_issued.load() + g.lifecycle_issued.load();
    const u64 dropped = g.dropped.load();
    std::string row = "{";
    add(row, "group", std::to_string(i));
    add(row, "name", quoted(i == 0 ? "" : r->view.string(g.name)));
    add(row, "desc", quoted(i == 0 ? "the process itself" : r->view.string(g.desc)));
    add(row, "n_ranks", std::to_string(g.n_ranks));
    add(row, "destroyed", g.destroyed_ticks.load() != 0 ? "true" : "false");
    add(row, "enqueued", std::to_string(g.issued.load() & kSeqMask));
    add(row, "started", std::to_string(g.started_seq.load()));
    add(row, "completed", std::to_string(g.completed_seq.load()));
    add(row, "p2p", std::to_string(g.p2p_issued.load()));
    add(row, "failed", std::to_string(g.failed.load()));
    add(row, "in_flight", std::to_string(count_in_flight(g)));
    add(row, "kept", std::to_string(kept[i]));
    const u64 lost = i != 0 && issued > kept[i] ? issued - kept[i] : dropped;
    add(row, "lost", std::to_string(lost));
    groups += (i == 0 ? "" : ", ") + row + "}";
  }
  add(out, "groups", groups + "]");
  std::string losses = "{";
  add(losses, "dropped", std::to_string(h.dropped.load()));
  add(losses, "skipped", std::to_string(h.skipped.load()));
  add(losses, "status_lost", std::to_string(h.status_lost.load()));
  add(losses, "strings_lost", std::to_string(h.strings_lost.load()));
  add(losses, "stacks_lost", std::to_string(h.stacks_lost.load()));
  add(losses, "groups_lost", std::to_string(h.groups_lost.load()));
  add(losses, "lanes_lost", std::to_string(h.lanes_lost.load()));
  add(losses, "crumbs_lost", std::to_string(h.crumbs_lost.load()));
  add(losses, "no_group", std::to_string(h.no_group.load()));
  add(losses, "dumps_failed", std::to_string(h.dumps_failed.load()));
  add(out, "losses", losses + "}");
  add(out, "device", device_json(r->view));
  return out + "}";
}

}  // namespace fr
