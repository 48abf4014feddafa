#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace flotilla {

// Why an operation failed. Each code has one HTTP status, so that an error keeps its meaning across the hub.
enum class StatusCode {
  kOk,                  // 200
  kInvalidArgument,     // 400: the caller's input is wrong and stays wrong
  kPermissionDenied,    // 403
  kNotFound,            // 404
  kAlreadyExists,       // 409: create-if-absent found an object
  kFailedPrecondition,  // 412: the state is not what the caller expected (conditional write, stale base)
  kDataLoss,            // 422: bytes are corrupt, torn or do not match their digest
  kResourceExhausted,   // 507: no space, memory or quota
  kCancelled,           // 499: the caller asked to stop
  kInternal,            // 500: a bug or an unexpected answer of a library
  kUnavailable,         // 503: try again later
  kDeadlineExceeded,    // 504
};

std::string_view status_code_name(StatusCode code);
int http_status(StatusCode code);

// The outcome of an operation: ok, or a code and a message that says what failed, at which object, observed against
// expected. Cheap to copy when ok. Any thread may use its own copy.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // The same error seen from one level up: "context: message".
  Status with_context(std::string_view context) const&;
  Status with_context(std::string_view context) &&;

  // "data_loss: apply delta 12: tensor 7: gap past the end"
  std::string to_string() const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status ok_status() { return {}; }
Status invalid_argument(std::string message);
Status permission_denied(std::string message);
Status not_found(std::string message);
Status already_exists(std::string message);
Status failed_precondition(std::string message);
Status data_loss(std::string message);
Status resource_exhausted(std::string message);
Status cancelled(std::string message);
Status internal_error(std::string message);
Status unavailable(std::string message);
Status deadline_exceeded(std::string message);

// Status for a failed system call: "WHAT: strerror(errno_value)", with the code that fits the errno.
Status errno_status(int errno_value, std::string_view what);

[[noreturn]] void check_failed(const char* file, int line, const char* condition);

// A value or the Status that explains its absence. value() of an error is a bug and aborts.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) {
    if (status_.ok()) check_failed(__FILE__, __LINE__, "a Result made of a Status needs an error");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const& { return status_; }
  Status status() && { return std::move(status_); }

  T& value() & { return require(), *value_; }
  const T& value() const& { return require(), *value_; }
  T&& value() && { return require(), *std::move(value_); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  Result with_context(std::string_view context) && {
    if (ok()) return std::move(*this);
    return std::move(status_).with_context(context);
  }

 private:
  void require() const {
    if (!value_) check_failed(__FILE__, __LINE__, status_.message().c_str());
  }
  std::optional<T> value_;
  Status status_;
};

}  // namespace flotilla

// For bugs only: what a peer, a file or a model sends must become a Status.
#define FLOTILLA_CHECK(condition)                                               \
  do {                                                                          \
    if (!(condition)) ::flotilla::check_failed(__FILE__, __LINE__, #condition); \
  } while (false)

#define FLOTILLA_RETURN_IF_ERROR(expression)                                      \
  do {                                                                            \
    if (::flotilla::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)

#define FLOTILLA_CONCAT_INNER(a, b) a##b
#define FLOTILLA_CONCAT(a, b) FLOTILLA_CONCAT_INNER(a, b)
// FLOTILLA_ASSIGN_OR_RETURN(auto text, read_file(path));
#define FLOTILLA_ASSIGN_OR_RETURN(target, expression) \
  FLOTILLA_ASSIGN_OR_RETURN_INNER(FLOTILLA_CONCAT(result_, __LINE__), target, expression)
#define FLOTILLA_ASSIGN_OR_RETURN_INNER(result, target, expression) \
  auto result = (expression);                                       \
  if (!result.ok()) return std::move(result).status();              \
  target = std::move(result).value()
