#include "serve/api_error.h"

#include <nlohmann/json.hpp>

namespace flotilla {

std::string ApiError::to_json() const {
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(text);
  };
  const nlohmann::ordered_json error = {
      {"message", message}, {"type", type}, {"param", text_or_null(param)}, {"code", text_or_null(code)}};
  return nlohmann::ordered_json{{"error", error}}.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

ApiError api_error_of(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument: return {.message = status.message()};
    case StatusCode::kUnavailable:
      return {.http_status = 503, .type = "server_error", .message = status.message(), .code = "unavailable"};
    case StatusCode::kResourceExhausted:
      return {.http_status = 429, .type = "rate_limit_error", .message = status.message(), .code = "queue_full"};
    case StatusCode::kDeadlineExceeded:
      return {.http_status = 504, .type = "server_error", .message = status.message(), .code = "time_limit"};
    default: return {.http_status = 500, .type = "server_error", .message = status.message(), .code = "internal_error"};
  }
}

}  // namespace flotilla
