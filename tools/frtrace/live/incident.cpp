#include "live/incident.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <thread>

#include "format/layout.hpp"
#include "format/ticks.hpp"

namespace frtrace {

namespace {

constexpr std::uint64_t kMoment_ns = 5'000'000'000;
constexpr std::chrono::milliseconds kBetweenLooks{20};

// A control page, mapped to be written.
class Page {
 public:
  explicit Page(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct stat st{};
    if (fd >= 0 && ::fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
        st.st_size == off_t{sizeof(fr::Control)}) {
      void* p = ::mmap(nullptr, sizeof(fr::Control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
      page_ = p != MAP_FAILED ? static_cast<fr::Control*>(p) : nullptr;
    }
    if (fd >= 0) {
      ::close(fd);
    }
  }
  ~Page() {
    if (page_ != nullptr) {
      ::munmap(page_, sizeof(fr::Control));
    }
  }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;

  fr::Control* get() const {
    return page_ != nullptr && page_->magic.load() == fr::kControlMagic &&
                   page_->version == fr::kLayoutVersion &&
                   page_->row_bytes == sizeof(fr::PeerRow) && page_->row_count == fr::kPeers
               ? page_
               : nullptr;
  }

 private:
  fr::Control* page_ = nullptr;
};

// Follows libfr's ControlPage::open_incident: the process that increments the counter writes the
// reason. The opening rank is -1, as for an incident that came from another node.
std::uint64_t open_incident(fr::Control& page) {
  std::uint64_t current = page.incident.load();
  const std::uint64_t opened = page.incident_unix_ns.load(), now = fr::unix_now_ns();
  const bool is_fresh = opened != 0 && now - opened < kMoment_ns && page.incident_rank.load() < 0 &&
                        page.over.load() < current;
  if (is_fresh || !page.incident.compare_exchange_strong(current, current + 1)) {
    return page.incident.load();
  }
  page.reason_seq.fetch_add(1);
  std::strncpy(page.reason, "frtrace dump asked for it", sizeof page.reason - 1);
  page.incident_rank.store(-1);
  page.incident_unix_ns.store(now);
  page.reason_seq.fetch_add(1);
  return current + 1;
}

// The page that lists these rings, by their names; rings and page lie in one directory.
std::string page_of(const std::string& dir, const std::set<std::string>& rings) {
  std::string found;
  DIR* d = ::opendir(dir.c_str());
  while (const dirent* e = d != nullptr && found.empty() ? ::readdir(d) : nullptr) {
    const std::string path = dir + "/" + e->d_name;
    if (!path.ends_with(".ctl")) {
      continue;
    }
    const Page page(path);
    const fr::Control* c = page.get();
    const bool lists =
        c != nullptr &&
        std::any_of(std::begin(c->peers), std::end(c->peers), [&](const fr::PeerRow& row) {
          return row.state.load() == fr::kPeerLive &&
                 rings.contains(std::string(row.ring, strnlen(row.ring, sizeof row.ring)));
        });
    found = lists ? path : "";
  }
  if (d != nullptr) {
    ::closedir(d);
  }
  return found;
}

// The living ranks of the page: those that have dumped the incident, and those that have not.
void look_at_rows(const fr::Control& page, const std::set<std::string>& rings,
                  RaisedIncident& out) {
  out.dumped.clear();
  out.silent.clear();
  for (const fr::PeerRow& row : page.peers) {
    if (row.state.load() == fr::kPeerLive &&
        rings.contains(std::string(row.ring, strnlen(row.ring, sizeof row.ring)))) {
      (row.dumped.load() >= out.incident ? out.dumped : out.silent).push_back(row.rank.load());
    }
  }
  std::sort(out.dumped.begin(), out.dumped.end());
  std::sort(out.silent.begin(), out.silent.end());
}

}  // namespace

std::vector<RaisedIncident> raise_incidents(const std::vector<FoundRing>& rings,
                                            std::chrono::milliseconds limit) {
  using Key = std::tuple<std::string, std::string, int>;  // directory, job, attempt
  std::map<Key, std::set<std::string>> runs;
  for (const FoundRing& r : rings) {
    if (r.runs) {
      runs[{r.path.substr(0, r.path.rfind('/')), r.job, r.attempt}].insert(r.name);
    }
  }
  struct Asked {
    std::unique_ptr<Page> page;
    const std::set<std::string>* rings;
  };
  std::vector<Asked> asked;
  std::vector<RaisedIncident> out;
  for (const auto& [key, names] : runs) {
    auto page = std::make_unique<Page>(page_of(std::get<0>(key), names));
    if (page->get() != nullptr) {
      out.push_back({std::get<1>(key), open_incident(*page->get()), {}, {}});
      asked.push_back({std::move(page), &names});
    }
  }
  const auto until = std::chrono::steady_clock::now() + limit;
  for (bool all = asked.empty();;) {
    for (std::size_t i = 0; i < asked.size(); ++i) {
      look_at_rows(*asked[i].page->get(), *asked[i].rings, out[i]);
    }
    all = std::all_of(out.begin(), out.end(), [](const auto& r) { return r.silent.empty(); });
    if (all || std::chrono::steady_clock::now() >= until) {
      return out;
    }
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

}  // namespace frtrace
