// checks.hpp - the functions behind the table of checks.cpp, by subject.
#pragma once

#include "doctor/check.hpp"
#include "doctor/machine.hpp"

namespace frtrace::doctor {

// network.cpp
Finding check_interface(Machine&);
Finding check_interfaces_agree(Machine&);
Finding check_host_name(Machine&);
Finding check_firewall(Machine&);
Finding check_master_port(Machine&);
Finding check_master_reached(Machine&);
Finding check_port_range(Machine&);
Finding check_mtu(Machine&);
Finding check_subnets(Machine&);

// fabric.cpp
bool has_fabric(Machine&);
Finding check_ports(Machine&);
Finding check_link_flaps(Machine&);
Finding check_gid(Machine&);
Finding check_extra_hca(Machine&);
Finding check_gpudirect(Machine&);
Finding check_userland(Machine&);

// gpu.cpp
bool has_gpus(Machine&);
bool needs_gpu(Machine&);  // CUDA is loaded in the job
Finding check_gpu_count(Machine&);
Finding check_xid(Machine&);
Finding check_recovery(Machine&);
Finding check_row_remap(Machine&);
Finding check_ecc(Machine&);
Finding check_nvlink(Machine&);
Finding check_fabric_manager(Machine&);
Finding check_throttling(Machine&);
Finding check_gpu_empty(Machine&);
Finding check_persistence(Machine&);
Finding check_acs(Machine&);
Finding check_iommu(Machine&);

// limits.cpp
Finding check_shm(Machine&);
Finding check_memlock(Machine&);
Finding check_open_files(Machine&);
Finding check_memory(Machine&);
Finding check_processors(Machine&);
Finding check_swap(Machine&);
Finding check_pids(Machine&);
Finding check_core_dumps(Machine&);

// storage.cpp
Finding check_dump_dir(Machine&);
Finding check_mounts(Machine&);
Finding check_stuck_threads(Machine&);

// environment.cpp
Finding check_versions(Machine&);
Finding check_environment(Machine&);
Finding check_debugging(Machine&);
Finding check_watchdogs(Machine&);
Finding check_deadlines(Machine&);
Finding check_plugins(Machine&);
Finding check_ptrace(Machine&);
Finding check_remove_ipc(Machine&);

// clocks.cpp
Finding check_clock_source(Machine&);
Finding check_ntp(Machine&);
Finding check_restart(Machine&);

}  // namespace frtrace::doctor
