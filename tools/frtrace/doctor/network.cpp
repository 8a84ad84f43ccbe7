// network.cpp - how ranks find and reach each other over Ethernet and TCP.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "doctor/checks.hpp"
#include "system/bounded.hpp"

namespace frtrace::doctor {

namespace {

struct Interface {
  std::string name, address;
  int prefix = 0;  // bits of its network
};

// Interfaces that are up, and their addresses but for link-local ones: "eth0 10.0.0.1 24".
std::optional<std::string> addresses() {
  std::string out;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) {
    return std::nullopt;
  }
  for (const ifaddrs* a = all; a != nullptr; a = a->ifa_next) {
    if (a->ifa_addr == nullptr || a->ifa_netmask == nullptr || (a->ifa_flags & IFF_UP) == 0) {
      continue;
    }
    char text[INET6_ADDRSTRLEN] = "";
    int bits = 0;
    if (a->ifa_addr->sa_family == AF_INET) {
      sockaddr_in address{}, mask{};
      std::memcpy(&address, a->ifa_addr, sizeof address);
      std::memcpy(&mask, a->ifa_netmask, sizeof mask);
      ::inet_ntop(AF_INET, &address.sin_addr, text, sizeof text);
      bits = __builtin_popcount(mask.sin_addr.s_addr);
    } else if (a->ifa_addr->sa_family == AF_INET6) {
      sockaddr_in6 address{};
      std::memcpy(&address, a->ifa_addr, sizeof address);
      if (!IN6_IS_ADDR_LINKLOCAL(&address.sin6_addr)) {
        ::inet_ntop(AF_INET6, &address.sin6_addr, text, sizeof text);
      }
    }
    if (*text != '\0') {
      out += fmt::format("{} {} {}\n", a->ifa_name, text, bits);
    }
  }
  ::freeifaddrs(all);
  return out;
}

std::vector<Interface> interfaces(Machine& m) {
  std::vector<Interface> out;
  for (const std::string& line : lines_of(m.ask("addresses", addresses).value_or(""))) {
    const std::vector<std::string> w = words_of(line);
    if (w.size() == 3) {
      out.push_back({w[0], w[1], static_cast<int>(number_of(w[2]))});
    }
  }
  return out;
}

// Interfaces of containers and virtual machines on this machine, which lead to no other node.
bool is_inner(const std::string& name) {
  constexpr std::string_view kInner[] = {"docker", "virbr", "veth", "br-",    "cni",
                                         "podman", "lxc",   "lxd",  "cilium", "flannel"};
  return std::any_of(std::begin(kInner), std::end(kInner),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

// NCCL's list: prefixes; "=" names whole, "^" all but these. gloo's are whole names.
bool takes(const std::string& list, const std::string& name, bool whole) {
  std::string_view rest = list;
  const bool all_but = rest.starts_with('^');
  rest.remove_prefix(all_but ? 1 : 0);
  const bool exact = whole || rest.starts_with('=');
  rest.remove_prefix(rest.starts_with('=') ? 1 : 0);
  const std::vector<std::string> words = split(rest, ',');
  const bool named = std::any_of(words.begin(), words.end(), [&](const std::string& word) {
    const std::string its = word.substr(0, word.find(':'));
    return exact ? name == its : name.starts_with(its);
  });
  return named != all_but;
}

const char kGloo[] = "GLOO_SOCKET_IFNAME", kNccl[] = "NCCL_SOCKET_IFNAME",
           kPipe[] = "TP_SOCKET_IFNAME";

std::vector<std::string> taken(const std::vector<Interface>& all, const std::string& list,
                               bool whole) {
  std::set<std::string> names;
  for (const Interface& i : all) {
    if (takes(list, i.name, whole)) {
      names.insert(i.name);
    }
  }
  return {names.begin(), names.end()};
}

Finding other_network(Machine& m) {
  return unknown(fmt::format("process {} has a network namespace of its own: run doctor there",
                             m.processes().front().pid));
}

// Addresses of the host's own name, one per line.
std::optional<std::string> own_addresses() {
  std::optional<std::string> out;
  in_child(
      [](const Say& say) {
        char name[256] = "";
        ::gethostname(name, sizeof name - 1);
        addrinfo hints{}, *all = nullptr;
        hints.ai_socktype = SOCK_STREAM;
        std::string text = std::string(name) + "\n";
        if (::getaddrinfo(name, nullptr, &hints, &all) == 0) {
          for (const addrinfo* a = all; a != nullptr; a = a->ai_next) {
            char host[NI_MAXHOST] = "";
            ::getnameinfo(a->ai_addr, a->ai_addrlen, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
            text += std::string(host) + "\n";
          }
        }
        say(text);
      },
      [&](std::string_view said) { out = said; });
  return out;
}

// "connected", or why not.
std::optional<std::string> connection(const std::string& host, const std::string& port) {
  std::string out = "no answer within 3 s";
  in_child(
      [&](const Say& say) {
        addrinfo hints{}, *all = nullptr;
        hints.ai_socktype = SOCK_STREAM;
        if (::getaddrinfo(host.c_str(), port.c_str(), &hints, &all) != 0) {
          say("the name does not resolve");
          return;
        }
        std::string why;
        for (const addrinfo* a = all; a != nullptr && why != "connected"; a = a->ai_next) {
          const int fd = ::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, 0);
          why = ::connect(fd, a->ai_addr, a->ai_addrlen) == 0 ? "connected" : std::strerror(errno);
          ::close(fd);
        }
        say(why);
      },
      [&](std::string_view said) { out = said; });
  return out;
}

}  // namespace

Finding check_interface(Machine& m) {
  if (!m.same_network()) {
    return other_network(m);
  }
  const std::vector<Interface> all = interfaces(m);
  std::string inner;
  for (const Interface& i : all) {
    if (is_inner(i.name)) {
      inner += (inner.empty() ? "" : ", ") + i.name + " " + i.address;
    }
  }
  std::string value;
  for (const char* name : {kNccl, kGloo}) {
    const std::string list = m.env(name);
    m.alike(name, list.empty() ? "unset" : list);
    const std::vector<std::string> its = taken(all, list, name == kGloo);
    if (!list.empty() && its.empty()) {
      return bad(fmt::format("{}={}, and no interface that is up and has an address is so called",
                             name, list));
    }
    if (!list.empty()) {
      value +=
          fmt::format("{}{}={} ({})", value.empty() ? "" : ", ", name, list, fmt::join(its, " "));
    } else if (!inner.empty() && m.spans_nodes() != false) {
      return warn(fmt::format("{} is not set, and {} is up", name, inner));
    }
  }
  return ok(!value.empty() ? value : m.spans_nodes() == false ? "one node" : "no inner interfaces");
}

Finding check_interfaces_agree(Machine& m) {
  if (!m.same_network()) {
    return other_network(m);
  }
  const std::vector<Interface> all = interfaces(m);
  std::map<std::string, std::vector<std::string>> of;
  for (const char* name : {kNccl, kGloo, kPipe}) {
    if (const std::string list = m.env(name); !list.empty()) {
      of[name] = taken(all, list, name != kNccl);
    }
  }
  for (const auto& [name, its] : of) {
    for (const auto& [other, others] : of) {
      const bool meets = std::any_of(its.begin(), its.end(), [&](const std::string& i) {
        return std::find(others.begin(), others.end(), i) != others.end();
      });
      if (!its.empty() && !others.empty() && !meets) {
        return warn(fmt::format("{}={}, {}={}", name, m.env(name), other, m.env(other)));
      }
    }
  }
  return of.size() < 2 ? not_here("fewer than two are set") : ok("they name the same");
}

Finding check_host_name(Machine& m) {
  if (!m.same_network()) {
    return other_network(m);
  }
  const auto answer = m.ask("own addresses", own_addresses);
  const std::vector<std::string> lines = lines_of(answer.value_or(""));
  if (!answer || lines.empty()) {
    return warn("the host's own name is not resolved within 3 s");
  }
  const std::string& name = lines.front();
  if (lines.size() == 1) {
    return warn(fmt::format("{} does not resolve", name));
  }
  const std::string& first = lines[1];
  const bool loops = first.starts_with("127.") || first == "::1";
  const std::string value = fmt::format("{} is {}", name, first);
  if (!loops || m.spans_nodes() == false || !m.env(kGloo).empty()) {
    return ok(loops ? value + (m.env(kGloo).empty() ? ", one node" : ", gloo's interface is named")
                    : value);
  }
  return m.spans_nodes() == true ? bad(value) : warn(value);
}

Finding check_firewall(Machine& m) {
  const auto rules = m.command("nft", {"nft", "list", "ruleset"});
  if (!rules) {
    return unknown("root, and nft installed");
  }
  bool input = false;
  for (const std::string& line : lines_of(*rules)) {
    if (line.find("hook ") != std::string::npos) {
      input = line.find("hook input") != std::string::npos;
      if (input && line.find("policy drop") != std::string::npos) {
        return warn("nftables drops what no rule of its input chain accepts");
      }
    }
    const std::vector<std::string> words = words_of(line);
    if (input && !words.empty() && (words.back() == "drop" || words.front() == "reject")) {
      return warn("nftables, input: " + trimmed(line));
    }
  }
  return ok("no rule drops what comes in");
}

Finding check_master_port(Machine& m) {
  const std::string port = m.env("MASTER_PORT");
  if (port.empty()) {
    return not_here("MASTER_PORT is not set");
  }
  std::set<std::string> sockets;  // that listen there: inode
  for (const char* file : {"/net/tcp", "/net/tcp6"}) {
    for (const std::string& line : lines_of(m.read("/proc/" + m.processes().front().pid + file))) {
      const std::vector<std::string> w = words_of(line);
      if (w.size() > 9 && w[3] == "0A" &&
          std::strtol(w[1].substr(w[1].rfind(':') + 1).c_str(), nullptr, 16) == number_of(port)) {
        sockets.insert("socket:[" + w[9] + "]");
      }
    }
  }
  if (sockets.empty()) {
    return ok("nobody listens at port " + port + " here");
  }
  for (const std::string& pid : m.list("/proc")) {
    if (pid.find_first_not_of("0123456789") != std::string::npos) {
      continue;
    }
    for (const std::string& fd : m.list("/proc/" + pid + "/fd")) {
      if (!sockets.contains(m.link("/proc/" + pid + "/fd/" + fd))) {
        continue;
      }
      // a rank, or the agent that started the ranks
      const auto& ranks = m.processes();
      const bool own = std::any_of(ranks.begin(), ranks.end(), [&](const Process& p) {
        const std::string parent = field_of(m.read("/proc/" + p.pid + "/status"), "PPid");
        return p.pid == pid || parent == pid;
      });
      const std::string who = fmt::format("process {} ({})", pid, m.line("/proc/" + pid + "/comm"));
      return own ? ok(fmt::format("{} of this job listens at {}", who, port))
                 : bad(fmt::format("{} listens at port {} and is not of this job", who, port));
    }
  }
  return m.is_job() ? unknown("another user, or another container, listens at port " + port)
                    : bad("somebody listens at port " + port + " already");
}

Finding check_master_reached(Machine& m) {
  const std::string host = m.env("MASTER_ADDR"), port = m.env("MASTER_PORT");
  if (host.empty() || port.empty()) {
    return not_here("MASTER_ADDR and MASTER_PORT are not set");
  }
  m.alike("MASTER_ADDR", host + ":" + port);
  if (!m.same_network()) {
    return other_network(m);
  }
  const std::string at = host + ":" + port;
  const std::string got =
      m.ask("connect " + at, [&] { return connection(host, port); }).value_or("no answer");
  return got == "connected" ? ok(at + " answers") : bad(fmt::format("{}: {}", at, got));
}

Finding check_port_range(Machine& m) {
  const std::vector<std::string> w = words_of(m.read("/proc/sys/net/ipv4/ip_local_port_range"));
  if (w.size() != 2) {
    return unknown("/proc/sys/net/ipv4/ip_local_port_range");
  }
  const int width = static_cast<int>(number_of(w[1]) - number_of(w[0])) + 1;
  const std::string value = fmt::format("{} ports, {} to {}", width, w[0], w[1]);
  return width < 10'000 && m.world() > 1000 ? bad(fmt::format("{}; {} ranks", value, m.world()))
         : width < 2'000                    ? warn(value)
                                            : ok(value);
}

Finding check_mtu(Machine& m) {
  std::string value;
  for (const std::string& name : m.list("/sys/class/net")) {
    const std::string dir = "/sys/class/net/" + name;
    if (name == "lo" || is_inner(name) || m.line(dir + "/operstate") != "up") {
      continue;
    }
    const std::string mtu = m.line(dir + "/mtu");
    m.alike(name, mtu);
    value += fmt::format("{}{} {}", value.empty() ? "" : ", ", name, mtu);
    // what a bond or a bridge carries
    for (const std::string& lower : m.list(dir)) {
      const std::string its =
          lower.starts_with("lower_") ? m.line(dir + "/" + lower + "/mtu") : mtu;
      if (number_of(its) < number_of(mtu)) {
        return bad(fmt::format("{} has {}, {} below it {}", name, mtu, lower.substr(6), its));
      }
    }
  }
  return value.empty() ? not_here("no interface is up") : ok(value);
}

Finding check_subnets(Machine& m) {
  if (!m.same_network()) {
    return other_network(m);
  }
  std::map<std::pair<std::uint32_t, int>, std::string> seen;
  for (const Interface& i : interfaces(m)) {
    in_addr address{};
    if (is_inner(i.name) || i.name == "lo" || i.prefix < 1 ||
        ::inet_pton(AF_INET, i.address.c_str(), &address) != 1) {
      continue;
    }
    const std::uint32_t net = ntohl(address.s_addr) >> (32 - i.prefix);
    const auto [it, fresh] = seen.try_emplace({net, i.prefix}, i.name);
    const auto answers_for_others = [&](const std::string& name) {
      const std::string dir = "/proc/sys/net/ipv4/conf/" + name;
      return m.line(dir + "/arp_filter") == "0" && m.line(dir + "/arp_ignore") == "0";
    };
    if (!fresh && it->second != i.name && answers_for_others("all") && answers_for_others(i.name)) {
      return warn(
          fmt::format("{} and {} are both in the network of {}/{}, arp_filter and "
                      "arp_ignore are 0",
                      it->second, i.name, i.address, i.prefix));
    }
  }
  return ok(fmt::format("{} network{}", seen.size(), seen.size() == 1 ? "" : "s"));
}

}  // namespace frtrace::doctor
