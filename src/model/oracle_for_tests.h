#pragma once

#include <cstdlib>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "model/packaged_model.h"

// Tests against Python packages that we did not write. Where FLOTILLA_VENV says that the packages are there, as ./run
// test does, their absence is a failure; without it the test is skipped.
#define FLOTILLA_NEED_ORACLE()                                                           \
  do {                                                                                   \
    if (const auto model = packaged_model(); !model.ok()) {                              \
      if (std::getenv("FLOTILLA_VENV") != nullptr) FAIL() << model.status().to_string(); \
      GTEST_SKIP() << model.status().to_string();                                        \
    }                                                                                    \
  } while (false)

namespace flotilla {

// Runs a Python file with arguments, offline; whether it ended well. The command is printed when it did not.
template <typename... Arguments>
testing::AssertionResult run_python(const std::string& script, const Arguments&... arguments) {
  std::string command = fmt::format("HF_HUB_OFFLINE=1 TQDM_DISABLE=1 OMP_NUM_THREADS=1 '{}' '{}'",
                                    (python_environment() / "bin/python").string(), script);
  ((command += fmt::format(" '{}'", std::filesystem::path(arguments).string())), ...);
  if (std::system(command.c_str()) == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure() << command;
}

}  // namespace flotilla
