#include "input/summary/numbers.hpp"

#include <algorithm>

#include "model/operation.hpp"

namespace frtrace::reduce {

namespace {

constexpr std::uint32_t kNoNumber = UINT32_MAX;

// Differences wrap, so that any value is restored exactly.
std::uint64_t less(Time t, Time than) {
  return static_cast<std::uint64_t>(t) - static_cast<std::uint64_t>(than);
}

Time since(Time t, Time begin) {
  return t == 0 ? 0 : static_cast<Time>(less(t, begin) << 1 | 1);
}

Time until(Time t, Time begin) {
  return t == 0 ? 0 : plausible(begin + (t >> 1));
}

}  // namespace

std::vector<bool> recent(const RankEvidence& e, std::size_t last) {
  constexpr std::size_t kOfGroup = 4, kInFlight = 128;
  std::vector<bool> out(e.records.size(), false);
  std::vector<std::size_t> of_group(e.groups.size(), 0);
  std::size_t in_flight = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const Record& r = e.records[i];
    const bool open = r.state == State::kEnqueued || r.state == State::kStarted ||
                      r.state == State::kWaiting || r.state == State::kFailed;
    out[i] = i == 0 || r.kind == Kind::kLifecycle ||
             (open && communicates(r) && in_flight++ < kInFlight) || i + last >= out.size();
  }
  for (std::size_t i = out.size(); i-- > 0;) {
    const Record& r = e.records[i];
    if (communicates(r) && r.group < of_group.size() && of_group[r.group]++ < kOfGroup) {
      out[i] = true;
    }
  }
  return out;
}

void Expected::leave_out(Record& r) {
  std::uint64_t& before = last(r);
  const std::uint64_t seq = r.seq;
  r.seq -= before + 1;
  before = seq;
  r.started = since(r.started, r.time);
  r.ended = since(r.ended, r.time);
}

void Expected::put_back(Record& r) {
  std::uint64_t& before = last(r);
  r.seq += before + 1;
  r.seq = r.seq >> 62 != 0 ? 0 : r.seq;  // damage: later numbers would count from it
  before = r.seq;
  r.started = until(r.started, r.time);
  r.ended = until(r.ended, r.time);
}

std::uint32_t TableBuilder::string(std::string_view s) {
  const auto [it, added] = string_ids_.try_emplace(s, static_cast<std::uint32_t>(strings.size()));
  if (added) {
    strings.push_back(s);
  }
  return it->second;
}

std::uint32_t TableBuilder::frame(Frame f) {
  const auto [it, added] =
      frame_ids_.try_emplace({f.file, f.func, f.line}, static_cast<std::uint32_t>(frames.size()));
  if (added) {
    frames.push_back(f);
  }
  return it->second;
}

std::uint32_t TableBuilder::thread_frame(const ThreadFrame& f) {
  const auto [it, added] = thread_frame_ids_.try_emplace(
      {f.python ? 1u : 0u, string(f.function), string(f.file), f.line, f.offset},
      static_cast<std::uint32_t>(thread_frames.size()));
  if (added) {
    thread_frames.push_back(it->first);
  }
  return it->second;
}

std::uint32_t TableBuilder::list(std::vector<std::uint32_t> words) {
  if (words.empty()) {
    return 0;
  }
  const auto [it, added] =
      list_ids_.try_emplace(std::move(words), static_cast<std::uint32_t>(lists.size() + 1));
  if (added) {
    lists.push_back(&it->first);
  }
  return it->second;
}

Writer::Writer(TableBuilder& tables, RankEvidence& e)
    : tables_(tables),
      e_(e),
      stacks_(e.stacks.size(), kNoNumber),
      thread_frames_(e.threads.frames.size(), kNoNumber) {}

void Writer::stack(std::uint32_t i) {
  if (i >= stacks_.size()) {
    word(0);
    return;
  }
  if (stacks_[i] == kNoNumber) {
    std::vector<std::uint32_t> frames;
    for (const std::uint32_t f : e_.stacks[i]) {
      if (f < e_.frames.size()) {
        const Frame& own = e_.frames[f];
        frames.push_back(tables_.frame(
            {tables_.string(e_.text(own.file)), tables_.string(e_.text(own.func)), own.line}));
      } else {
        frames.push_back(kNoNumber);
      }
    }
    stacks_[i] = tables_.list(std::move(frames));
  }
  word(stacks_[i]);
}

void Writer::shape(std::uint32_t first, std::uint32_t count) {
  const bool sound = count != 0 && std::uint64_t{first} + count <= e_.shape_words.size();
  const auto begin = e_.shape_words.begin() + (sound ? first : 0);
  word(sound ? tables_.list({begin, begin + count}) : 0);
}

void Writer::thread_stack(const std::vector<std::uint32_t>& stack) {
  std::vector<std::uint32_t> frames;
  for (const std::uint32_t f : stack) {
    if (f >= thread_frames_.size()) {
      continue;
    }
    if (thread_frames_[f] == kNoNumber) {
      thread_frames_[f] = tables_.thread_frame(e_.threads.frames[f]);
    }
    frames.push_back(thread_frames_[f]);
  }
  word(tables_.list(std::move(frames)));
}

void Writer::by_columns(std::size_t begin, std::size_t rows) {
  const std::size_t n = row_.words.size() - begin;
  const std::size_t width = rows == 0 ? 0 : n / rows;
  const std::vector<std::uint64_t> by_rows(row_.words.begin() + static_cast<std::ptrdiff_t>(begin),
                                           row_.words.end());
  std::size_t to = begin;
  for (std::size_t column = 0; column < width; ++column) {
    std::uint64_t above = 0;
    for (std::size_t row = 0; row < rows; ++row) {
      const std::uint64_t w = by_rows[row * width + column];
      row_.words[to++] = w - above;
      above = w;
    }
  }
}

std::size_t Reader::size() {
  if (next_size_ == sizes_.size()) {
    throw Damaged("damaged: a summary that ends too early");
  }
  const std::uint64_t n = sizes_[next_size_++];
  if (n > words_.size() - at_) {  // an element is at least one word
    throw Damaged("damaged: a summary whose lists do not fit");
  }
  return static_cast<std::size_t>(n);
}

std::span<const std::uint64_t> Reader::rows_of(std::size_t n, std::size_t width) {
  if ((words_.size() - at_) / width < n) {
    throw Damaged("damaged: a summary whose lists do not fit");
  }
  rows_.resize(n * width);
  for (std::size_t column = 0; column < width; ++column) {
    std::uint64_t above = 0;
    for (std::size_t row = 0; row < n; ++row) {
      above += words_[at_++];
      rows_[row * width + column] = above;
    }
  }
  return rows_;
}

void Reader::shape(std::uint32_t& first, std::uint32_t& count) {
  const std::uint64_t i = word();
  const bool known = i != 0 && i < tables_.lists.size();
  first = known ? tables_.list_begins[i] : 0;
  count = known ? static_cast<std::uint32_t>(tables_.lists[i].size()) : 0;
}

void Reader::thread_stack(std::vector<std::uint32_t>& to) {
  const std::uint64_t i = word();
  if (i >= tables_.lists.size()) {
    return;
  }
  for (const std::uint32_t f : tables_.lists[i]) {
    if (f < tables_.thread_frames.size()) {
      to.push_back(f);
    }
  }
}

void Writer::history(std::vector<Record>& all) {
  const std::vector<bool> is_recent = recent(e_);
  std::vector<Record> older, newer;
  for (std::size_t i = 0; i < all.size(); ++i) {
    (is_recent[i] ? newer : older).push_back(all[i]);
  }
  put(older);
  put(newer);
}

void Reader::history(std::vector<Record>& all) {
  std::vector<Record> older;
  if (all_records_) {
    get(older);
  } else {
    left_out_ = size();
    if ((words_.size() - at_) / width<Record>() < left_out_) {
      throw Damaged("damaged: a summary whose lists do not fit");
    }
    at_ += left_out_ * width<Record>();
  }
  get(all);
  const auto middle = static_cast<std::ptrdiff_t>(older.size());
  all.insert(all.begin(), older.begin(), older.end());
  std::inplace_merge(all.begin(), all.begin() + middle, all.end(),
                     [](const Record& a, const Record& b) { return a.ticket < b.ticket; });
}

void Reader::read(RankEvidence& e, bool all_records) {
  all_records_ = all_records;
  fields(*this, e);
  e.losses.trimmed += left_out_;
  keep_unfinished(e.device);
}

}  // namespace frtrace::reduce
