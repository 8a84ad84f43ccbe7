// symbols.cpp - names of functions that no library exports, from symbol tables and debug files.
#include "input/symbols.hpp"

#ifdef FR_HAVE_LIBDW

#include <elfutils/libdwfl.h>
#include <sys/stat.h>

#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "system/bounded.hpp"

namespace frtrace {

namespace {

std::string hex(const unsigned char* bytes, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) {
    out += "0123456789abcdef"[bytes[i] >> 4];
    out += "0123456789abcdef"[bytes[i] & 15];
  }
  return out;
}

// Reading the symbols of a large library takes a second, from a slow disk several.
constexpr std::chrono::seconds kReading{10};
constexpr const char* kNoAnswer =
    "its file system does not answer; functions that it does not export have no name";

constexpr const char* kDamaged =
    "its symbols cannot be read; functions that it does not export have no name";

// Finds separate debug files by build id only: other ways may find another build's file, or use the
// network.
const Dwfl_Callbacks kCallbacks = {.find_elf = dwfl_build_id_find_elf,
                                   .find_debuginfo = dwfl_build_id_find_debuginfo,
                                   .section_address = dwfl_offline_section_address,
                                   .debuginfo_path = nullptr};

// The symbols of one file, by address as in its headers.
class SymbolFile {
 public:
  SymbolFile(const std::string& path, const std::string& build_id) {
    struct stat st{};
    if (build_id.empty() || ::stat(path.c_str(), &st) != 0 || !S_ISREG(st.st_mode)) {
      return;
    }
    dwfl_.reset(::dwfl_begin(&kCallbacks));
    if (dwfl_ == nullptr) {
      return;
    }
    Dwfl_Module* m = ::dwfl_report_elf(dwfl_.get(), path.c_str(), path.c_str(), -1, 0, true);
    ::dwfl_report_end(dwfl_.get(), nullptr, nullptr);
    const unsigned char* id = nullptr;
    GElf_Addr where = 0;
    GElf_Addr bias = 0;
    if (m != nullptr && ::dwfl_module_getelf(m, &bias) != nullptr && bias == 0) {
      const int n = ::dwfl_module_build_id(m, &id, &where);
      module_ = n > 0 && hex(id, n) == build_id ? m : nullptr;
    }
  }

  // "" if no function covers the address.
  const std::string& function(std::uint64_t address) {
    const auto [it, fresh] = names_.try_emplace(address);
    if (fresh && module_ != nullptr) {
      GElf_Off into = 0;
      GElf_Sym symbol{};
      const char* name =
          ::dwfl_module_addrinfo(module_, address, &into, &symbol, nullptr, nullptr, nullptr);
      const bool covers =
          name != nullptr && into < symbol.st_size && GELF_ST_TYPE(symbol.st_info) == STT_FUNC;
      it->second = covers ? demangled(name) : std::string();
    }
    return it->second;
  }

 private:
  struct End {
    void operator()(Dwfl* d) const { ::dwfl_end(d); }
  };
  std::unique_ptr<Dwfl, End> dwfl_;
  Dwfl_Module* module_ = nullptr;
  std::unordered_map<std::uint64_t, std::string> names_;
};

}  // namespace

void name_functions(const std::vector<std::unique_ptr<RankEvidence>>& evidence,
                    std::vector<Unreadable>& unreadable) {
  // Every function without a name, once.
  using File = std::pair<std::string_view, std::string_view>;  // path, build id
  std::map<File, std::map<std::uint64_t, std::string>> wanted;
  const auto each = [&](const auto& fn) {
    for (const auto& e : evidence) {
      ThreadsEvidence& t = e->threads;
      if (t.modules.empty()) {
        continue;
      }
      std::unordered_map<std::string_view, std::string_view> build_id;
      for (const ThreadModule& m : t.modules) {
        build_id.emplace(m.file, m.build_id);
      }
      for (ThreadFrame& f : t.frames.edit()) {
        const auto it = f.python || !f.function.empty() ? build_id.end() : build_id.find(f.file);
        if (it != build_id.end() && !it->second.empty()) {
          fn(f, File(it->first, it->second));
        }
      }
    }
  };
  each([&](const ThreadFrame& f, const File& file) { wanted[file].try_emplace(f.offset); });
  std::vector<File> files;
  for (const auto& [file, offsets] : wanted) {
    files.push_back(file);
  }
  // A child process reads file after file; if it blocks, the next one skips that mount.
  for (std::size_t next = 0; next < files.size();) {
    if (given_up_on(files[next].first)) {
      unreadable.push_back({std::string(files[next].first), kNoAnswer});
      ++next;
      continue;
    }
    const std::size_t first = next;
    auto at = wanted[files[first]].begin();
    const bool ended = in_child(
        [&](const Say& say) {
          for (std::size_t i = first; i < files.size() && !given_up_on(files[i].first); ++i) {
            SymbolFile symbols{std::string(files[i].first), std::string(files[i].second)};
            for (const auto& [offset, name] : wanted[files[i]]) {
              say(symbols.function(offset));
            }
          }
        },
        [&](std::string_view name) {
          at->second = name;
          if (++at == wanted[files[next]].end() && ++next < files.size()) {
            at = wanted[files[next]].begin();
          }
        },
        kReading);
    if (next < files.size() && !ended) {
      unreadable.push_back({std::string(files[next].first), kNoAnswer});
      give_up_on(files[next].first);
      ++next;
    } else if (next == first) {
      unreadable.push_back({std::string(files[next].first), kDamaged});  // the child died over it
      ++next;
    }
  }
  each([&](ThreadFrame& f, const File& file) { f.function = wanted[file][f.offset]; });
}

}  // namespace frtrace

#else

namespace frtrace {

void name_functions(const std::vector<std::unique_ptr<RankEvidence>>&, std::vector<Unreadable>&) {}

}  // namespace frtrace

#endif
