#pragma once

#include <string>
#include <utility>
#include <variant>

#include "base/status.h"

namespace flotilla {

// An error as S3 gives it: `code` is the word that clients act on.
struct S3Error {
  int http_status = 400;
  std::string code = "InvalidArgument";
  std::string message;
  std::string detail = {};  // for the log only: it may name the hub's folders
};

template <typename T>
using S3Result = std::variant<T, S3Error>;

// The words for what the store says of an object.
S3Error s3_error_of(const Status& status);

}  // namespace flotilla
