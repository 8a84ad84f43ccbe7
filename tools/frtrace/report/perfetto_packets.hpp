// perfetto_packets.hpp - the packets of a Perfetto trace: tracks, events, interned texts.
//
// All packets belong to one sequence, ordered by time: a timestamp is the time since the packet
// before (an incremental clock), and every text is stored once.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "model/rank_data.hpp"
#include "report/lines.hpp"
#include "report/protobuf.hpp"

namespace frtrace {

enum class TraceText : std::uint8_t { kCategory, kName, kAnnotation, kValue, kPlace };

class PerfettoPackets {
 public:
  enum class Phase : std::uint8_t { kBegin = 1, kEnd = 2, kInstant = 3 };

  // `zero`: Unix time of the first event.
  explicit PerfettoPackets(Time zero) : last_(zero) {
    packet([&] {
      out_.number(13, 1);  // the sequence begins
      out_.message(59, [&] { out_.number(58, kDeltas); });
      out_.message(6, [&] {
        clock(kBoottime, kFirst);
        clock(kRealtime, static_cast<std::uint64_t>(zero));
        out_.message(1,
                     [&] { out_.number(1, kDeltas), out_.number(2, kFirst), out_.number(3, 1); });
      });
    });
  }

  struct Track {
    std::string name;
    std::string description = {};  // printable lines
    std::uint32_t parent = 0;      // 0: none
    std::uint32_t place = 0;       // position among its siblings
    bool is_lag = false;           // a counter, in microseconds
  };
  // Must be called before the track's first event. Tracks with equal names are not merged.
  std::uint32_t track(const Track& t) {
    const std::uint32_t uuid = ++tracks_;
    packet([&] {
      out_.message(60, [&] {
        out_.number(1, uuid);
        if (t.parent != 0) {
          out_.number(5, t.parent);
        }
        out_.text(2, printable(t.name));
        if (!t.description.empty()) {
          out_.text(14, t.description);
        }
        if (t.is_lag) {
          // stored in nanoseconds, shown in microseconds
          out_.message(
              8, [&] { out_.number(3, 1), out_.number(4, 1000), out_.text(7, "arrival lag"); });
        }
        out_.number(11, 3);  // children are ordered by `place`
        out_.number(12, t.place);
        out_.number(15, 2);  // tracks are not merged
      });
    });
    return uuid;
  }

  // Events must come in the order of time. `fill` adds members of TrackEvent.
  template <class F>
  void event(Time time, std::uint32_t track, Phase phase, F&& fill) {
    members_.clear();
    members_.number(9, static_cast<std::uint64_t>(phase));
    members_.number(11, track);
    fill();
    packet([&] {
      out_.number(8, static_cast<std::uint64_t>(time - last_));
      out_.number(13, 2);  // the packet needs the incremental state
      if (!interned_.empty()) {
        out_.text(12, interned_.bytes());
        interned_.clear();
      }
      out_.text(11, members_.bytes());
    });
    last_ = time;
  }
  void end(Time time, std::uint32_t track) {
    event(time, track, Phase::kEnd, [] {});
  }

  // ---- to be called within `fill`
  void name(std::string_view text) { members_.number(10, id(TraceText::kName, text)); }
  void name_once(std::string_view text) { members_.text(23, printable(text)); }
  void category(std::string_view text) { members_.number(3, id(TraceText::kCategory, text)); }
  void annotate(std::string_view key, std::uint64_t value) {
    annotation(key, [&] { members_.number(3, value); });
  }
  // Interns `value`: use it if there are few different values.
  void annotate(std::string_view key, std::string_view value) {
    annotation(key, [&] { members_.number(17, id(TraceText::kValue, value)); });
  }
  void place(std::uint32_t number) { members_.number(34, number); }
  void annotate_once(std::string_view key, std::string_view value) {
    annotation(key, [&] { members_.text(6, printable(value)); });
  }
  void correlate(std::uint64_t number) { members_.number(52, number); }
  void flow(std::uint64_t number) { members_.fixed64(47, number); }
  void count(std::uint32_t track, std::uint64_t value) {
    members_.number(31, track);
    members_.number(12, value);
  }

  // The number of an interned text, which is written with the next event.
  std::uint32_t id(TraceText kind, std::string_view text) {
    return id(kind, text, [&] { interned_.text(2, printable(text)); });
  }
  // The same for a place in the program, for place().
  std::uint32_t place_id(const Site& site) {
    return id(TraceText::kPlace, site_text(site), [&] {
      interned_.text(2, printable(site.file));
      interned_.text(3, printable(site.function));
      interned_.number(4, site.line);
    });
  }

  std::size_t size() const { return out_.size(); }
  std::string take() { return out_.take(); }

 private:
  static constexpr std::uint32_t kRealtime = 1, kBoottime = 6, kDeltas = 64;
  static constexpr std::uint64_t kFirst = 1'000'000'000;  // time of the first event, kBoottime

  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  using Known = std::unordered_map<std::string, std::uint32_t, Hash, std::equal_to<>>;

  template <class F>
  std::uint32_t id(TraceText kind, std::string_view text, F&& tell) {
    Known& known = known_[static_cast<std::size_t>(kind)];
    if (const auto it = known.find(text); it != known.end()) {
      return it->second;
    }
    const auto number = static_cast<std::uint32_t>(known.size() + 1);
    known.emplace(text, number);
    constexpr std::uint32_t kFields[] = {1, 2, 3, 29, 4};
    interned_.message(kFields[static_cast<std::size_t>(kind)], [&] {
      interned_.number(1, number);
      tell();
    });
    return number;
  }
  template <class F>
  void packet(F&& fill) {
    out_.message(1, [&] {
      out_.number(10, 1);
      fill();
    });
  }
  template <class F>
  void annotation(std::string_view key, F&& value) {
    const std::uint32_t number = id(TraceText::kAnnotation, key);
    members_.message(4, [&] {
      members_.number(1, number);
      value();
    });
  }
  void clock(std::uint32_t number, std::uint64_t time) {
    out_.message(1, [&] { out_.number(1, number), out_.number(2, time); });
  }

  ProtoWriter out_, members_, interned_;
  std::array<Known, 5> known_;
  std::uint32_t tracks_ = 0;
  Time last_ = 0;
};

}  // namespace frtrace
