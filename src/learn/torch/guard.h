#pragma once

#include <exception>
#include <new>
#include <string>
#include <string_view>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include "base/status.h"

namespace flotilla {

// The one place where libtorch's exceptions become a Status. `f` returns a Status or a Result and runs without
// autograd. A failed allocation is resource_exhausted; anything else that libtorch throws is internal.
template <typename F>
auto guarded(std::string_view what, F f) -> decltype(f()) {
  const auto named = [what](const char* text) { return std::string(what) + ": " + text; };
  try {
    const at::NoGradGuard no_grad;
    return f();
  } catch (const std::bad_alloc&) {
    return resource_exhausted(named("out of memory"));
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    // c10's CPU allocator reports a failed allocation with this text and no type of its own.
    if (message.find("not enough memory") != std::string::npos) return resource_exhausted(named(message.c_str()));
    return internal_error(named(message.c_str()));
  } catch (const std::exception& error) {
    return internal_error(named(error.what()));
  }
}

}  // namespace flotilla
