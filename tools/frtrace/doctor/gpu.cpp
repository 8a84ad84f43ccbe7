// gpu.cpp - GPUs, their links, and the PCI bridges above them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "doctor/checks.hpp"

namespace frtrace::doctor {

namespace {

// The PCI class of display and 3D controllers is 03xxxx.
std::size_t gpus_on_bus(Machine& m) {
  std::size_t n = 0;
  for (const std::string& device : m.list("/sys/bus/pci/devices")) {
    const std::string dir = "/sys/bus/pci/devices/" + device;
    n += m.line(dir + "/vendor") == "0x10de" && m.line(dir + "/class").starts_with("0x03") ? 1 : 0;
  }
  return n;
}

Finding no_gpu(Machine& m) {
  if (!needs_gpu(m)) {
    return not_here("no NVIDIA GPU");
  }
  constexpr char kWhy[] = "the driver is not loaded, or the container was given no GPU";
  constexpr char kRemedy[] = "load the driver; --gpus all, --gres=gpu:N, nvidia.com/gpu: N";
  for (const char* name : {"CUDA_VISIBLE_DEVICES", "SLURM_JOB_GPUS", "SLURM_GPUS_ON_NODE"}) {
    if (const std::string value = m.env(name); !value.empty()) {
      return bad(fmt::format("{}={}, and no NVIDIA device", name, value), kWhy, kRemedy);
    }
  }
  return warn("the job has CUDA's libraries loaded, and no NVIDIA device", kWhy, kRemedy);
}

// One line per GPU of a query of nvidia-smi, fields by commas.
struct Query {
  std::optional<Finding> instead;
  std::vector<std::vector<std::string>> rows;
};

Query query(Machine& m, const std::string& fields, const char* kind = "--query-gpu") {
  if (!has_gpus(m)) {
    return {no_gpu(m), {}};
  }
  const std::string name = "nvidia-smi " + fields;
  const auto text = m.command(
      name, {"nvidia-smi", fmt::format("{}={}", kind, fields), "--format=csv,noheader,nounits"});
  if (!text) {
    return {m.hangs(name) ? unknown("nvidia-smi did not end within 10 s")
                          : unknown("nvidia-smi, installed and with " + fields),
            {}};
  }
  Query out;
  for (const std::string& line : lines_of(*text)) {
    std::vector<std::string> row = split(line, ',');
    std::transform(row.begin(), row.end(), row.begin(),
                   [](const std::string& field) { return trimmed(field); });
    out.rows.push_back(std::move(row));
  }
  return out;
}

// "GPU 0: Reset, GPU 3: Reset" for the rows in which wrong(field) holds.
template <class Wrong>
std::string wrong_gpus(const Query& q, std::size_t field, Wrong wrong) {
  std::string out;
  for (std::size_t i = 0; i < q.rows.size(); ++i) {
    if (q.rows[i].size() > field && wrong(q.rows[i][field])) {
      out += fmt::format("{}GPU {}: {}", out.empty() ? "" : ", ", i, q.rows[i][field]);
    }
  }
  return out;
}

// One call of nvidia-smi, which takes seconds where persistence mode is off.
constexpr char kCommon[] = "persistence_mode,memory.used,ecc.errors.uncorrected.volatile.total";

bool is_count(const std::string& text) {
  return number_of(text) > 0;
}

// "NVRM: Xid (PCI:0000:3b:00): 79, ..." -> 79; -1: no such line.
int xid_of(const std::string& text) {
  const std::size_t at = text.find("NVRM: Xid (");
  const std::size_t end = at == std::string::npos ? at : text.find("): ", at);
  return end == std::string::npos ? -1 : std::atoi(text.c_str() + end + 3);
}

// Xid errors that end or stall training. The others are application errors or notes.
constexpr std::array kFatalXids{46, 48, 62, 64, 74, 79, 95, 119, 120, 140};
constexpr std::array kApplicationXids{13, 31, 43, 45, 94};
constexpr double kRecent_s = 86'400;

}  // namespace

bool has_gpus(Machine& m) {
  return !m.list("/proc/driver/nvidia/gpus").empty() || m.exists("/dev/nvidiactl") ||
         gpus_on_bus(m) > 0;
}

bool needs_gpu(Machine& m) {
  return m.is_job() &&
         m.read("/proc/" + m.processes().front().pid + "/maps").find("libcudart.so") !=
             std::string::npos &&
         m.env("CUDA_VISIBLE_DEVICES") != "-1";
}

Finding check_gpu_count(Machine& m) {
  const std::size_t driver = m.list("/proc/driver/nvidia/gpus").size(), bus = gpus_on_bus(m);
  if (!has_gpus(m)) {
    return no_gpu(m);
  }
  // A container with some of the GPUs sees only those in /proc, but all of them on the bus.
  const std::string given = m.env("NVIDIA_VISIBLE_DEVICES");
  const bool some =
      (!given.empty() && given != "all") ||
      m.read("/proc/self/mountinfo").find(" /proc/driver/nvidia") != std::string::npos;
  m.alike("gpus", fmt::format("{}", some ? driver : std::max(driver, bus)));
  if (driver < bus && !some) {
    return bad(fmt::format("{} on the PCI bus, {} known to the driver", bus, driver));
  }
  const Query q = query(m, kCommon);
  const std::string said = m.failure(std::string("nvidia-smi ") + kCommon);
  if (q.instead && said.find("Failed to initialize NVML") != std::string::npos) {
    return bad(said, "the driver was replaced under its loaded module, or does not run",
               "reboot, or reload the nvidia modules");
  }
  const std::string visible = m.env("CUDA_VISIBLE_DEVICES");
  const std::size_t named = split(visible, ',').size();
  if (needs_gpu(m) && visible.empty() && m.ranks_here() > static_cast<int>(driver) && driver > 0) {
    return bad(fmt::format("{} ranks, {} GPUs", m.ranks_here(), driver),
               "two ranks on one GPU: NCCL refuses it", "one rank per GPU: --nproc-per-node");
  }
  return ok(visible.empty() ? fmt::format("{}", driver)
                            : fmt::format("{}, {} of them visible", driver, named));
}

Finding check_xid(Machine& m) {
  if (!has_gpus(m)) {
    return no_gpu(m);
  }
  const auto& log = m.kernel_log();
  if (!log) {
    return unknown("the kernel log: root, CAP_SYSLOG or group systemd-journal");
  }
  const KernelLine* worst = nullptr;
  bool fatal = false;
  int n = 0;
  for (const KernelLine& line : *log) {
    const int xid = xid_of(line.text);
    const bool ends = std::count(kFatalXids.begin(), kFatalXids.end(), xid) > 0;
    const bool shown =
        ends || std::count(kApplicationXids.begin(), kApplicationXids.end(), xid) > 0;
    if (!shown || line.age_s > kRecent_s) {
      continue;
    }
    ++n;
    if (worst == nullptr || ends || !fatal) {
      worst = &line;
    }
    fatal = fatal || ends;
  }
  if (worst == nullptr) {
    return ok("none that matters in the last 24 h");
  }
  const std::string value =
      fmt::format("{} in the last 24 h; {:.0f} min ago: {}", n, worst->age_s / 60, worst->text);
  return fatal ? bad(value)
               : warn(value, "mostly the program's own fault: the process of that GPU died",
                      "look at that rank's own error first");
}

Finding check_recovery(Machine& m) {
  const Query q = query(m, "gpu_recovery_action");
  if (q.instead) {
    return *q.instead;
  }
  const std::string wrong = wrong_gpus(q, 0, [](const std::string& action) {
    return action != "None" && action.find("N/A") == std::string::npos;
  });
  return wrong.empty() ? ok("none") : bad(wrong);
}

Finding check_row_remap(Machine& m) {
  const Query q = query(m, "remapped_rows.pending,remapped_rows.failure", "--query-remapped-rows");
  if (q.instead) {
    return *q.instead;
  }
  const auto yes = [](const std::string& text) { return text == "Yes" || text == "1"; };
  const std::string failed = wrong_gpus(q, 1, yes), pending = wrong_gpus(q, 0, yes);
  return !failed.empty()    ? bad("failed: " + failed, "", "replace the GPU")
         : !pending.empty() ? bad("pending: " + pending, "", "reset the GPU (nvidia-smi -r)")
                            : ok("none pending, none failed");
}

Finding check_ecc(Machine& m) {
  const Query q = query(m, kCommon);
  if (q.instead) {
    return *q.instead;
  }
  const std::string wrong = wrong_gpus(q, 2, is_count);
  return wrong.empty() ? ok("none since the driver was loaded") : bad(wrong);
}

Finding check_nvlink(Machine& m) {
  if (!has_gpus(m)) {
    return no_gpu(m);
  }
  const auto text = m.command("nvidia-smi nvlink", {"nvidia-smi", "nvlink", "-s"});
  if (!text) {
    return unknown("nvidia-smi nvlink -s");
  }
  int links = 0;
  std::string gpu, inactive;
  for (const std::string& line : lines_of(*text)) {
    const std::string t = trimmed(line);
    gpu = t.starts_with("GPU ") ? t.substr(0, t.find(':')) : gpu;
    links += t.starts_with("Link ") ? 1 : 0;
    if (t.find("nactive") != std::string::npos) {
      inactive +=
          fmt::format("{}{} {}", inactive.empty() ? "" : ", ", gpu, t.substr(0, t.find(':')));
    }
  }
  m.alike("links", fmt::format("{}", links));
  return links == 0         ? not_here("no NVLink")
         : inactive.empty() ? ok(fmt::format("{} links", links))
                            : bad("inactive: " + inactive);
}

Finding check_fabric_manager(Machine& m) {
  bool has_switch = false;
  for (const std::string& name : m.list("/dev")) {
    has_switch = has_switch || name.starts_with("nvidia-nvswitch");
  }
  if (!has_switch) {
    return has_gpus(m) ? not_here("no NVSwitch") : no_gpu(m);
  }
  const Query q = query(m, "fabric.state,fabric.status");
  const std::string wrong = wrong_gpus(q, 0, [](const std::string& state) {
    return state != "Completed" && state.find("N/A") == std::string::npos;
  });
  if (!wrong.empty()) {
    return bad("the GPUs have not joined the fabric: " + wrong);
  }
  const auto active =
      m.command("systemctl fabricmanager", {"systemctl", "is-active", "nvidia-fabricmanager"});
  if (active) {
    return ok("nvidia-fabricmanager is active");
  }
  return !q.instead && !q.rows.empty() && q.rows.front().front() == "Completed"
             ? ok("the GPUs have joined the fabric")
         : m.exists("/run/systemd/system") ? bad("nvidia-fabricmanager is not active")
                                           : unknown("systemctl of the host");
}

Finding check_throttling(Machine& m) {
  Query q = query(m, "clocks_event_reasons.active");
  if (q.instead && q.instead->state == State::kUnknown) {
    q = query(m, "clocks_throttle_reasons.active");  // of older drivers
  }
  if (q.instead) {
    return *q.instead;
  }
  std::string value;
  for (std::size_t i = 0; i < q.rows.size(); ++i) {
    const auto bits = std::strtoull(q.rows[i].front().c_str(), nullptr, 16);
    const char* what = (bits & 0x40) != 0   ? "too hot"
                       : (bits & 0x80) != 0 ? "power brake"
                       : (bits & 0x8) != 0  ? "slowed by the hardware"
                                            : nullptr;
    if (what != nullptr) {
      value += fmt::format("{}GPU {}: {}", value.empty() ? "" : ", ", i, what);
    }
  }
  return value.empty() ? ok("none now") : warn(value);
}

Finding check_gpu_empty(Machine& m) {
  const Query used = query(m, kCommon);
  if (used.instead) {
    return *used.instead;
  }
  const Query apps = query(m, "pid,used_memory", "--query-compute-apps");
  std::set<std::string> own;
  for (const Process& p : m.processes()) {
    own.insert(p.pid);
  }
  std::string foreign;
  for (const auto& row : apps.rows) {
    // in a container it shows no pids; a helper of a rank is the rank's child
    const std::string status = m.read("/proc/" + row.front() + "/status");
    if (!status.empty() && !own.contains(row.front()) && !own.contains(field_of(status, "PPid"))) {
      foreign += fmt::format("{}process {} ({})", foreign.empty() ? "" : ", ", row.front(),
                             field_of(status, "Name"));
    }
  }
  if (!foreign.empty()) {
    return warn("on the GPUs, and not of this job: " + foreign);
  }
  const std::string full = m.is_job() ? "" : wrong_gpus(used, 1, [](const std::string& mib) {
    return number_of(mib) > 1024;
  });
  return full.empty() ? ok("only this job's processes") : warn("MiB in use: " + full);
}

Finding check_persistence(Machine& m) {
  const Query q = query(m, kCommon);
  if (q.instead) {
    return *q.instead;
  }
  const std::string off =
      wrong_gpus(q, 0, [](const std::string& mode) { return mode == "Disabled"; });
  return off.empty() ? ok("on") : warn("off: " + off);
}

Finding check_acs(Machine& m) {
  if (!has_gpus(m) && !has_fabric(m)) {
    return not_here("no GPU, no InfiniBand device");
  }
  if (m.is_virtual()) {
    return not_here("virtual machine: the host's bridges are not seen");
  }
  const auto text = m.command("lspci", {"lspci", "-vvv"});
  if (!text || text->find("ACSCtl") == std::string::npos) {
    return unknown("root, and lspci (pciutils)");
  }
  std::string device, on;
  int n = 0;
  for (const std::string& line : lines_of(*text)) {
    device = !line.empty() && line[0] != '\t' && line[0] != ' ' ? line.substr(0, line.find(' '))
                                                                : device;
    if (line.find("ACSCtl:") != std::string::npos && line.find("SrcValid+") != std::string::npos) {
      on = ++n == 1 ? device : on;
    }
  }
  return n == 0 ? ok("off on all bridges") : bad(fmt::format("on for {} bridges ({} ...)", n, on));
}

Finding check_iommu(Machine& m) {
  if (m.list("/sys/class/iommu").empty()) {
    return ok("off");
  }
  if (!has_gpus(m) && !has_fabric(m)) {
    return not_here("no GPU, no InfiniBand device");
  }
  if (m.is_virtual()) {
    return not_here("virtual machine");
  }
  const std::string line = m.read("/proc/cmdline");
  return line.find("iommu=pt") != std::string::npos ||
                 line.find("iommu.passthrough=1") != std::string::npos
             ? ok("passthrough")
             : warn("on, and not in passthrough mode");
}

}  // namespace frtrace::doctor
