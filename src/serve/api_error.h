#pragma once

#include <string>

#include "base/status.h"

namespace flotilla {

// An error as the OpenAI API tells it: {"error": {"message", "type", "param", "code"}} with an HTTP status, from which
// its clients choose what to raise.
struct ApiError {
  int http_status = 400;
  std::string type = "invalid_request_error";
  std::string message = {};
  std::string param = {};  // the field at fault; empty: null
  std::string code = {};   // empty: null

  std::string to_json() const;
};

// What a request failed of.
ApiError api_error_of(const Status& status);

}  // namespace flotilla
