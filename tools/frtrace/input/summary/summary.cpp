// summary.cpp - encodes the evidence of ranks as a summary file, and decodes it.
#include "input/summary/summary.hpp"

#include <fmt/format.h>
#include <zstd.h>

#include <algorithm>
#include <map>
#include <msgpack.hpp>
#include <tuple>

#include "input/fr/fr_dump.hpp"
#include "input/memory.hpp"
#include "input/msgpack_tree.hpp"
#include "input/summary/numbers.hpp"

namespace frtrace::reduce {

namespace {

constexpr std::uint32_t kSkippable =
    0x184D2A5E;  // one of the sixteen magic numbers that zstd skips
constexpr std::string_view kMark = "fr.summary/1";
constexpr int kVersion = 5;  // 4 lacked generations of groups, 3 unknown completions
constexpr std::size_t kHeadBytes = 8 + kMark.size();
constexpr int kLevel = 12;
constexpr std::size_t kMaxTextBytes = 4096;
constexpr std::size_t kFewWords = 4096;  // about one rank's evidence without older records

// ---- numbers as bytes

void put_number(std::string& to, std::uint64_t w) {
  std::uint64_t v = w << 1 ^ (w >> 63 != 0 ? UINT64_MAX : 0);
  while (v >= 0x80) {
    to.push_back(static_cast<char>(v | 0x80));
    v >>= 7;
  }
  to.push_back(static_cast<char>(v));
}

class Numbers {
 public:
  explicit Numbers(const Object* o) : bytes_(text(o)) {}
  bool at_end() const { return at_ == bytes_.size(); }
  std::size_t most() const { return bytes_.size(); }  // an upper bound of its numbers
  std::uint64_t next() {
    std::uint64_t v = 0;
    for (int shift = 0; at_ < bytes_.size() && shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(bytes_[at_++]);
      v |= std::uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) {
        return v >> 1 ^ ((v & 1) != 0 ? UINT64_MAX : 0);
      }
    }
    throw Damaged("damaged: a summary that ends too early");
  }
  std::uint32_t next32() { return static_cast<std::uint32_t>(next()); }

 private:
  std::string_view bytes_;
  std::size_t at_ = 0;
};

// ---- writing

class Class {
 public:
  void add(std::vector<std::uint64_t> words) {
    if (++n_ == 1) {
      first_ = std::move(words);
      return;
    }
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (words[i] != first_[i]) {
        places.push_back(i);
      }
    }
    put_number(gaps_, places.size());
    std::size_t before = 0;
    for (const std::size_t i : places) {
      put_number(gaps_, i - before);
      put_number(deltas_, words[i] - first_[i]);
      before = i;
    }
  }
  template <class Packer>
  void pack(Packer& to, const std::vector<std::uint64_t>& sizes) const {
    to.pack_array(5);
    to.pack(n_);
    std::string bytes;
    for (const auto* numbers : {&sizes, &first_}) {
      bytes.clear();
      for (const std::uint64_t w : *numbers) {
        put_number(bytes, w);
      }
      to.pack(bytes);
    }
    to.pack(gaps_);
    to.pack(deltas_);
  }

 private:
  std::size_t n_ = 0;
  std::vector<std::uint64_t> first_;
  std::string gaps_, deltas_;
};

std::string pack_tables(const TableBuilder& tables,
                        const std::map<std::vector<std::uint64_t>, Class>& classes) {
  msgpack::sbuffer buffer;
  msgpack::packer<msgpack::sbuffer> to(buffer);
  const auto text = [&](std::string_view s) {
    to.pack_str(static_cast<std::uint32_t>(s.size()));
    to.pack_str_body(s.data(), static_cast<std::uint32_t>(s.size()));
  };
  to.pack_map(7);
  text("format"), text("fr.summary");
  text("version"), to.pack(kVersion);
  std::string frames, thread_frames, lists;
  for (const Frame& f : tables.frames) {
    put_number(frames, f.file), put_number(frames, f.func), put_number(frames, f.line);
  }
  for (const auto& f : tables.thread_frames) {
    for (const std::uint64_t w : f) {
      put_number(thread_frames, w);
    }
  }
  for (const std::vector<std::uint32_t>* list : tables.lists) {
    put_number(lists, list->size());
    for (const std::uint32_t w : *list) {
      put_number(lists, w);
    }
  }
  text("strings"), to.pack_array(static_cast<std::uint32_t>(tables.strings.size()));
  for (const std::string_view s : tables.strings) {
    text(s);
  }
  text("frames"), text(frames);
  text("thread_frames"), text(thread_frames);
  text("lists"), text(lists);
  text("classes"), to.pack_array(static_cast<std::uint32_t>(classes.size()));
  for (const auto& [sizes, ranks] : classes) {
    ranks.pack(to, sizes);
  }
  return {buffer.data(), buffer.size()};
}

std::string head() {
  std::string out;
  for (const std::size_t number : {std::size_t{kSkippable}, kMark.size()}) {
    for (int shift = 0; shift < 32; shift += 8) {
      out.push_back(static_cast<char>(number >> shift));
    }
  }
  return out += kMark;
}

std::string compress(const std::string& content) {
  std::string out = head();
  const std::size_t begin = out.size();
  out.resize(begin + ZSTD_compressBound(content.size()));
  const std::size_t size =
      ZSTD_compress(out.data() + begin, out.size() - begin, content.data(), content.size(), kLevel);
  if (ZSTD_isError(size) != 0U) {
    throw std::runtime_error(std::string("zstd: ") + ZSTD_getErrorName(size));
  }
  out.resize(begin + size);
  return out;
}

// Identifies a piece of evidence, whichever summary has it.
auto name_of(const RankEvidence& e) {
  return std::tie(e.id.job, e.id.attempt, e.id.rank, e.incident, e.file, e.id.pid, e.id.start,
                  e.written);
}

// ---- reading

Tables read_tables(const Object& root) {
  Tables tables;
  for (const Object& o : list(member(&root, "strings"))) {
    tables.strings.emplace_back(text(&o).substr(0, kMaxTextBytes));
  }
  tables.strings.erase(tables.strings.begin());  // the file has ""
  if (tables.strings.empty()) {
    tables.strings.emplace_back();
  }
  const auto string = [&](std::uint64_t i) {
    return i < tables.strings.size() ? static_cast<std::uint32_t>(i) : 0;
  };
  tables.frames.clear();
  for (Numbers n(member(&root, "frames")); !n.at_end();) {
    const std::uint32_t file = string(n.next()), func = string(n.next());
    tables.frames.push_back({file, func, n.next32()});
  }
  for (Numbers n(member(&root, "thread_frames")); !n.at_end();) {
    ThreadFrame& f = tables.thread_frames.emplace_back();
    f.python = n.next() != 0;
    f.function = tables.strings[string(n.next())];
    f.file = tables.strings[string(n.next())];
    f.line = n.next32();
    f.offset = n.next();
    FileMemory::take(sizeof f + f.function.size() + f.file.size());
  }
  std::vector<std::uint32_t> words;
  for (Numbers n(member(&root, "lists")); !n.at_end();) {
    const std::uint64_t size = n.next();
    words.clear();
    if (size > n.most()) {
      throw Damaged("damaged: a summary whose lists do not fit");
    }
    for (std::uint64_t i = 0; i < size; ++i) {
      words.push_back(n.next32());
    }
    tables.list_begins.push_back(static_cast<std::uint32_t>(tables.list_words.size()));
    tables.list_words.insert(tables.list_words.end(), words.begin(), words.end());
    tables.lists.push_back(words);
  }
  return tables;
}

class Ranks {
 public:
  Ranks(Tables tables, bool all_records)
      : all_records_(all_records),
        tables_(std::move(tables)),
        strings_(tables_.strings),
        frames_(tables_.frames),
        stacks_(tables_.lists),
        shapes_(tables_.list_words),
        thread_frames_(tables_.thread_frames) {}

  void read_class(const Object& o) {
    const Row cells(&o);
    const std::vector<std::uint64_t> sizes = all_of(Numbers(cells[1]));
    const std::vector<std::uint64_t> first = all_of(Numbers(cells[2]));
    Numbers gaps(cells[3]), deltas(cells[4]);
    const auto members = number<std::uint64_t>(cells[0]);
    std::vector<std::uint64_t> words = first;
    std::vector<std::uint64_t> changed;
    for (std::uint64_t i = 0; i < members; ++i) {
      std::uint64_t at = 0;
      for (std::uint64_t n = i == 0 ? 0 : gaps.next(); n != 0; --n) {
        at += gaps.next();
        if (at >= words.size()) {
          throw Damaged("damaged: a summary whose lists do not fit");
        }
        words[at] += deltas.next();
        changed.push_back(at);
      }
      add(sizes, words);
      for (const std::uint64_t place : changed) {
        words[place] = first[place];
      }
      changed.clear();
    }
  }
  All all;

 private:
  static std::vector<std::uint64_t> all_of(Numbers n) {
    std::vector<std::uint64_t> out;
    while (!n.at_end()) {
      out.push_back(n.next());
    }
    return out;
  }
  void add(const std::vector<std::uint64_t>& sizes, const std::vector<std::uint64_t>& words) {
    // Upper estimate of the model's memory: 6 bytes per number of a record, 32 per text.
    constexpr std::size_t kBytesPerWord = 8, kBytesPerSize = 32;
    const std::size_t read = all_records_ ? words.size() : std::min(words.size(), kFewWords);
    FileMemory::take(sizeof(RankEvidence) + read * kBytesPerWord + sizes.size() * kBytesPerSize);
    auto e = std::make_unique<RankEvidence>();
    e->strings = strings_;
    e->frames = frames_;
    e->stacks = stacks_;
    e->shape_words = shapes_;
    e->threads.frames = thread_frames_;
    Reader(tables_, sizes, words).read(*e, all_records_);
    e->holes.reduced = true;
    all.push_back(std::move(e));
  }

  bool all_records_;
  Tables tables_;
  Shared<std::vector<std::string>> strings_;
  Shared<std::vector<Frame>> frames_;
  Shared<Stacks> stacks_;
  Shared<std::vector<std::uint32_t>> shapes_;
  Shared<std::vector<ThreadFrame>> thread_frames_;
};

}  // namespace

std::string encode(All& all) {
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return name_of(*a) < name_of(*b); });
  all.erase(std::unique(all.begin(), all.end(),
                        [](const auto& a, const auto& b) { return name_of(*a) == name_of(*b); }),
            all.end());
  TableBuilder tables;
  std::map<std::vector<std::uint64_t>, Class> classes;
  for (const auto& e : all) {
    Writer writer(tables, *e);
    writer(*e);
    Evidence row = writer.take();
    classes[std::move(row.sizes)].add(std::move(row.words));
  }
  return compress(pack_tables(tables, classes));
}

bool is_summary(std::span<const unsigned char> b) {
  static const std::string mark = head();
  return b.size() >= kHeadBytes &&
         std::equal(mark.begin(), mark.end(), b.begin(),
                    [](char x, unsigned char y) { return static_cast<unsigned char>(x) == y; });
}

All decode(std::span<const unsigned char> bytes, bool all_records, std::string& why) {
  All all;
  const auto use = [&](const Object& root) {
    if (text(member(&root, "format")) != "fr.summary") {
      why = "not recognised: a zstd file that is no summary";
      return;
    }
    if (const int version = number<int>(member(&root, "version")); version != kVersion) {
      why = fmt::format("summary version {}, this frtrace reads {}", version, kVersion);
      return;
    }
    Ranks ranks(read_tables(root), all_records);
    for (const Object& o : list(member(&root, "classes"))) {
      ranks.read_class(o);
    }
    all = std::move(ranks.all);
    why = all.empty() ? "a summary of no ranks" : "";
  };
  read_unpacked(bytes.subspan(std::min(bytes.size(), kHeadBytes)), use, why);
  return all;
}

}  // namespace frtrace::reduce
