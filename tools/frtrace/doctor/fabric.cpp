// fabric.cpp - InfiniBand and RoCE.
#include <fmt/format.h>

#include <algorithm>

#include "doctor/checks.hpp"

namespace frtrace::doctor {

namespace {

constexpr char kAdapters[] = "/sys/class/infiniband";

struct Port {
  std::string device, number, dir;
  std::string state, layer;  // "ACTIVE", "InfiniBand" or "Ethernet"
  double rate_gbps = 0;
  std::string name() const { return number == "1" ? device : device + ":" + number; }
};

std::vector<Port> ports_of(Machine& m) {
  std::vector<Port> out;
  for (const std::string& device : m.list(kAdapters)) {
    const std::string ports = fmt::format("{}/{}/ports", kAdapters, device);
    for (const std::string& number : m.list(ports)) {
      Port p{device, number, ports + "/" + number, "", "", 0};
      const std::string state = m.line(p.dir + "/state");  // "4: ACTIVE"
      p.state = trimmed(state.substr(state.find(':') + 1));
      p.layer = m.line(p.dir + "/link_layer");
      p.rate_gbps = number_of(m.line(p.dir + "/rate"));
      out.push_back(std::move(p));
    }
  }
  return out;
}

// Prefixes; "=" names whole, "^" all but these; "mlx5_0:1" has a port.
bool is_used(const std::string& list, const std::string& device) {
  std::string_view rest = list;
  const bool all_but = rest.starts_with('^');
  rest.remove_prefix(all_but ? 1 : 0);
  const bool exact = rest.starts_with('=');
  rest.remove_prefix(exact ? 1 : 0);
  const std::vector<std::string> words = split(rest, ',');
  const bool named = std::any_of(words.begin(), words.end(), [&](const std::string& word) {
    const std::string its = word.substr(0, word.find(':'));
    return exact ? its == device : device.starts_with(its);
  });
  return list.empty() || named != all_but;
}

const Finding& no_fabric() {
  static const Finding kNone = not_here("no InfiniBand or RoCE device");
  return kNone;
}

}  // namespace

bool has_fabric(Machine& m) {
  return !m.list(kAdapters).empty();
}

Finding check_ports(Machine& m) {
  const std::vector<Port> ports = ports_of(m);
  if (ports.empty()) {
    return no_fabric();
  }
  const std::string list = m.env("NCCL_IB_HCA");
  std::string down, rates;
  std::size_t active = 0, used = 0;
  for (const Port& p : ports) {
    m.alike(p.name(), fmt::format("{} {} Gb/s", p.state, p.rate_gbps));
    if (!is_used(list, p.device)) {
      continue;
    }
    ++used;
    active += p.state == "ACTIVE" ? 1 : 0;
    if (p.state != "ACTIVE") {
      down += fmt::format("{}{} {}", down.empty() ? "" : ", ", p.name(), p.state);
    }
  }
  const std::string value = fmt::format("{} of {} ports active", active, used);
  if (down.empty()) {
    return ok(value);
  }
  // ports that the user did not name may lack a cable on purpose
  return !list.empty() || active == 0 ? bad(value + ": " + down) : warn(value + ": " + down);
}

Finding check_link_flaps(Machine& m) {
  const std::vector<Port> ports = ports_of(m);
  std::string value;
  for (const Port& p : ports) {
    const double n = number_of(m.line(p.dir + "/counters/link_downed"));
    if (n > 0 && p.state == "ACTIVE") {
      value += fmt::format("{}{} {} times", value.empty() ? "" : ", ", p.name(), n);
    }
  }
  int carrier = 0;
  std::string last;
  const auto& log = m.kernel_log();
  for (const KernelLine& line : log.value_or(std::vector<KernelLine>())) {
    if (line.age_s < 7200 && (line.text.find("Lost carrier") != std::string::npos ||
                              line.text.find("Link is Down") != std::string::npos ||
                              line.text.find("Link down") != std::string::npos)) {
      ++carrier;
      last = line.text;
    }
  }
  if (carrier > 0) {
    return warn(fmt::format("{} in the kernel log of the last 2 h, last: {}", carrier, last));
  }
  return !value.empty()  ? warn("down since the counters began: " + value)
         : ports.empty() ? (log ? ok("none in the kernel log of the last 2 h") : no_fabric())
                         : ok("none");
}

Finding check_gid(Machine& m) {
  const std::string index = m.env("NCCL_IB_GID_INDEX");
  bool ethernet = false;
  for (const Port& p : ports_of(m)) {
    if (p.layer != "Ethernet" || p.state != "ACTIVE" || !is_used(m.env("NCCL_IB_HCA"), p.device)) {
      continue;
    }
    ethernet = true;
    const std::string type = m.line(p.dir + "/gid_attrs/types/" + index);
    if (!index.empty()) {
      m.alike(p.name(), type);
      if (type.find("v2") == std::string::npos) {
        return bad(fmt::format("NCCL_IB_GID_INDEX={}, which on {} is {}", index, p.name(),
                               type.empty() ? "nothing" : type));
      }
    }
  }
  return !ethernet       ? not_here("no active RoCE port")
         : index.empty() ? ok("NCCL chooses (NCCL_IB_GID_INDEX is not set)")
                         : ok(fmt::format("NCCL_IB_GID_INDEX={}, RoCE v2", index));
}

Finding check_extra_hca(Machine& m) {
  const std::vector<Port> ports = ports_of(m);
  if (ports.empty()) {
    return no_fabric();
  }
  const std::string list = m.env("NCCL_IB_HCA");
  double fastest = 0;
  for (const Port& p : ports) {
    fastest = p.state == "ACTIVE" ? std::max(fastest, p.rate_gbps) : fastest;
  }
  std::string extra;
  for (const Port& p : ports) {
    const bool bond = p.device.find("bond") != std::string::npos;
    if (p.state == "ACTIVE" && is_used(list, p.device) && (bond || p.rate_gbps < fastest / 2)) {
      extra += fmt::format("{}{} ({} Gb/s)", extra.empty() ? "" : ", ", p.name(), p.rate_gbps);
    }
  }
  return extra.empty()
             ? ok(fmt::format("all at {} Gb/s or not used", fastest))
             : warn(fmt::format("NCCL may use {} beside ports of {} Gb/s", extra, fastest));
}

Finding check_gpudirect(Machine& m) {
  if (!has_fabric(m) || !has_gpus(m)) {
    return not_here("no InfiniBand device or no GPU");
  }
  for (const char* module : {"nvidia_peermem", "nv_peer_mem"}) {
    if (m.exists(std::string("/sys/module/") + module)) {
      return ok(std::string(module) + " is loaded");
    }
  }
  const std::string driver = m.line("/proc/driver/nvidia/version");
  const std::vector<std::string> kernel = split(m.line("/proc/sys/kernel/osrelease"), '.');
  const bool recent =
      kernel.size() >= 2 &&
      (number_of(kernel[0]) > 5 || (number_of(kernel[0]) == 5 && number_of(kernel[1]) >= 12));
  return driver.find("Open Kernel Module") != std::string::npos && recent
             ? ok("DMA-BUF: open kernel module")
             : warn("nvidia_peermem is not loaded, and no DMA-BUF: " +
                    std::string(recent ? "closed kernel module" : "kernel older than 5.12"));
}

Finding check_userland(Machine& m) {
  if (!has_fabric(m)) {
    return no_fabric();
  }
  const std::vector<std::string> nodes = m.list(m.seen("/dev/infiniband"));
  if (std::none_of(nodes.begin(), nodes.end(),
                   [](const std::string& name) { return name.starts_with("uverbs"); })) {
    return bad("/sys/class/infiniband has devices, /dev/infiniband has no uverbs*");
  }
  return m.has_library("libibverbs.so") ? ok("libibverbs is there")
                                        : bad("libibverbs is not where the loader looks");
}

}  // namespace frtrace::doctor
