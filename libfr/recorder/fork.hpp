// fork.hpp - child processes record nothing until they start a recorder of their own.
#pragma once

namespace fr {

// Once per process; later calls do nothing.
void install_fork_handler() noexcept;

}  // namespace fr
