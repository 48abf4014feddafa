#pragma once

#include "base/status.h"

namespace flotilla {

enum class Priority {
  kLow,   // behind programs of ordinary priority where they compete for a core
  kIdle,  // only what nobody else wants: of the cores, and of the disk
};

// Lowers the priority of the calling thread and of the threads that it starts from now on; there is no way back. Where
// kIdle is refused, the lowest priority that is allowed. unavailable when the system refuses every one.
//
// Linux with autogroups weighs terminals against each other before their programs: a worker in a terminal of its own
// may then take more than its priority says, so whoever promises more than that has to pause by himself.
Status lower_priority(Priority priority);

}  // namespace flotilla
