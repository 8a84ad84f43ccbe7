// _fr - the Python module: pybind11 for what may be slow, plain C functions for
// the rest (fastcall.cpp).

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compat.hpp"
#include "fastcall.hpp"
#include "fr/fr.h"
#include "frames.hpp"
#include "snapshot.hpp"
#include "threads.hpp"

namespace py = pybind11;

namespace {

std::string grown(std::size_t (*call)(char*, std::size_t, const char*), const char* argument) {
  std::string text(4096, '\0');
  for (int attempt = 0; attempt < 4; ++attempt) {
    std::size_t bytes = 0;
    {
      py::gil_scoped_release release;
      bytes = call(text.data(), text.size(), argument);
    }
    if (bytes < text.size()) {
      text.resize(bytes);
      return text;
    }
    text.resize(bytes + 4096);  // it grew between the calls
  }
  text.resize(text.find('\0') == std::string::npos ? text.size() : text.find('\0'));
  return text;
}

// The variables that libfr sets by setenv(): os.environ is a copy and lacks them. None: unset.
py::dict nccl_variables() {
  py::dict variables;
  for (const char* name : {"NCCL_PROFILER_PLUGIN", "FR_NCCL_CHAIN"}) {
    const char* value = std::getenv(name);
    variables[name] = value != nullptr ? py::cast(value) : py::none();
  }
  return variables;
}

std::uint32_t intern(const std::string& text) {
  return fr_intern(text.data(), text.size());
}

fr_group_t group(const std::string& name, const std::optional<std::vector<std::int32_t>>& ranks,
                 const std::string& desc, const std::string& backend, int own_rank, int n_ranks) {
  fr_group_info info{};
  info.struct_bytes = sizeof info;
  info.n_ranks = ranks ? static_cast<std::int32_t>(ranks->size()) : n_ranks;
  info.own_rank = own_rank;
  info.name = name.c_str();
  info.desc = desc.c_str();
  info.backend = backend.c_str();
  info.ranks = ranks && !ranks->empty() ? ranks->data() : nullptr;
  py::gil_scoped_release release;
  return fr_group(&info);
}

// Innermost frame first: [(file, function, line)...]
std::uint32_t stack(
    const std::vector<std::tuple<std::string, std::string, std::uint32_t>>& frames) {
  std::vector<fr_frame> ids;
  for (const auto& [file, func, line] : frames) {
    ids.push_back({intern(file), intern(func), line});
  }
  return fr_stack(ids.data(), static_cast<std::uint32_t>(ids.size()));
}

py::object dump(const std::string& reason) {
  std::string path(4096, '\0');
  int written = 0;
  {
    py::gil_scoped_release release;
    written = fr_dump(reason.c_str(), path.data(), path.size());
  }
  if (written == 0) {
    return py::none();
  }
  path.resize(path.find('\0') == std::string::npos ? path.size() : path.find('\0'));
  return py::str(path);
}

// Runs on libfr's writer thread. The callable is never released: the thread may be about to use it.
void call_writer(const char* path, const void* data, std::size_t bytes, std::uint64_t incident,
                 const char* reason, void* user) {
  if (Py_IsInitialized() == 0 || fr::compat::finalizing()) {
    return;  // taking the GIL would end this thread, or the process
  }
  py::gil_scoped_acquire gil;
  try {
    py::dict info;
    info["path"] = path;
    info["incident"] = incident;
    info["reason"] = reason;
    py::handle fn(static_cast<PyObject*>(user));
    fn(py::bytes(static_cast<const char*>(data), bytes), info);
  } catch (py::error_already_set& error) {
    fr_log(1, (std::string("register_writer: the callable raised ") + error.what()).c_str());
  } catch (const std::exception& error) {
    fr_log(1, error.what());
  }
}

void register_writer(const py::object& fn) {
  void* user = fn.is_none() ? nullptr : fn.inc_ref().ptr();
  py::gil_scoped_release release;
  fr_register_writer(user == nullptr ? nullptr : &call_writer, user);
}

initproc g_system_exit_init = nullptr;

// Notes the call site that makes a SystemExit: no other trace of that place remains.
int note_system_exit(PyObject* self, PyObject* args, PyObject* kwargs) {
  // glibc 2.28 has no gettid().
  if (fr_enabled() != 0 && syscall(SYS_gettid) == getpid()) {
    fr_exit_site(fr::capture_stack());
  }
  return g_system_exit_init(self, args, kwargs);
}

void watch_system_exit() {
  auto* type = reinterpret_cast<PyTypeObject*>(PyExc_SystemExit);
  if (g_system_exit_init == nullptr) {
    g_system_exit_init = type->tp_init;
    type->tp_init = &note_system_exit;
  }
}

}  // namespace

PYBIND11_MODULE(_fr, m) {
  m.doc() = "libfr in Python; use the package fr";
  if (!fr::add_fastcalls(m.ptr())) {
    throw py::error_already_set();
  }
  fr::install_stack_provider();
  fr::install_thread_walker();

  using release = py::call_guard<py::gil_scoped_release>;
  m.def(
      "start",
      [] {
        const bool on = fr_start() != 0;
        fr::tell_thread_holes();
        return on;
      },
      release());
  m.def("be_silent_child", &fr::be_silent_child);
  m.def("enabled", [] { return fr_enabled() != 0; });
  m.def("generation", &fr_generation);
  m.def("set_job", &fr_set_job, py::arg("store"), py::arg("program"));
  m.def("set_run", &fr_set_run, py::arg("run"));
  m.def("set_identity", &fr_set_identity, py::arg("rank") = -1, py::arg("world_size") = -1,
        py::arg("local_rank") = -1);
  m.def("group", &group, py::arg("name"), py::arg("ranks") = py::none(), py::arg("desc") = "",
        py::arg("backend") = "", py::arg("own_rank") = -1, py::arg("n_ranks") = 0);
  m.def("group_find", [](const std::string& name) { return fr_group_find(name.c_str()); });
  m.def("group_destroyed", &fr_group_destroyed);
  m.def("intern", &intern);
  m.def("stack", &stack, py::arg("frames"));
  m.def("capture_stack", &fr::capture_stack);
  m.def("guard_thread", &fr_guard_thread);
  m.def("exit_begins", &fr_exit_begins);
  m.def("watch_system_exit", &watch_system_exit);
  m.def("dump", &dump, py::arg("reason") = "manual");
  m.def("register_writer", &register_writer);
  m.def(
      "exit_record",
      [](const std::string& kind, const std::string& type, const std::string& message,
         std::uint32_t stack_id) {
        fr_exit_record(kind.c_str(), type.c_str(), message.c_str(), stack_id);
      },
      py::arg("kind"), py::arg("type"), py::arg("message"), py::arg("stack") = 0);
  m.def("shutdown", &fr_shutdown, release());
  m.def("status", [] {
    return grown([](char* json, std::size_t bytes, const char*) { return fr_status(json, bytes); },
                 nullptr);
  });
  m.def("option", [](const std::string& name) {
    return grown([](char* value, std::size_t bytes,
                    const char* option) { return fr_option(option, value, bytes); },
                 name.c_str());
  });
  m.def("set_layer", [](const std::string& name, const std::string& text) {
    fr_set_layer(name.c_str(), text.c_str());
  });
  m.def("log", [](int level, const std::string& text) { fr_log(level, text.c_str()); });
  m.def("pause", [](bool on) { fr_pause(on ? 1 : 0); });
  m.def("snapshot", &fr::snapshot, py::arg("include_collectives") = true,
        py::arg("include_stack_traces") = true, py::arg("only_active") = false);
  m.def("records", &fr::records);
  m.def("api_address", [] { return reinterpret_cast<std::uintptr_t>(fr_get_api()); });
  m.def("set_tensor_reader", [](const py::type& base, std::size_t offset, std::uintptr_t reader) {
    fr::set_tensor_reader(base.inc_ref().ptr(), offset, reinterpret_cast<fr::TensorReader>(reader));
  });
  m.def("dtype_name",
        [](int code) { return std::string(fr_dtype_name(static_cast<std::uint8_t>(code))); });
  m.def("reduce_op_name",
        [](int code) { return std::string(fr_reduce_op_name(static_cast<std::uint8_t>(code))); });
  m.def("nccl_announce", [] {
    fr_nccl_announce();
    return nccl_variables();
  });
  m.def("nccl_withdraw", [] {
    fr_nccl_withdraw();
    return nccl_variables();
  });
  m.def("nccl_hook", &fr_nccl_hook, release());
  m.def("nccl_unhook", &fr_nccl_unhook, release());
  m.def("library_path", [] { return std::string(fr_library_path()); });
  m.def("frame_walk", &fr::frame_walk_kind);
  m.attr("__version__") = fr_version();
  const std::pair<const char*, int> constants[] = {{"COLLECTIVE", FR_COLLECTIVE},
                                                   {"SEND", FR_SEND},
                                                   {"RECV", FR_RECV},
                                                   {"LIFECYCLE", FR_LIFECYCLE},
                                                   {"STORE", FR_STORE},
                                                   {"ASYNC", FR_ASYNC},
                                                   {"WAIT_ONLY", FR_WAIT_ONLY},
                                                   {"UNTRACKED", FR_UNTRACKED},
                                                   {"COALESCED", FR_COALESCED},
                                                   {"OK", FR_OK},
                                                   {"FAILED", FR_FAILED},
                                                   {"RELEASED", FR_RELEASED},
                                                   {"REFUSED", FR_REFUSED}};
  for (const auto& [name, value] : constants) {
    m.attr(name) = value;
  }
}
