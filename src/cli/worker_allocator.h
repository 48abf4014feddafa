#pragma once

namespace flotilla {

// Big buffers go back to the system when they are freed, and threads have no heaps of their own: otherwise the
// allocator keeps some 30 MiB of what versions were made of. For the whole process; before it has other threads.
void use_worker_allocator();

}  // namespace flotilla
