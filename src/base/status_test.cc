#include "base/status.h"

#include <cerrno>
#include <memory>
#include <set>

#include <gtest/gtest.h>

namespace flotilla {
namespace {

Status fails_inside() {
  FLOTILLA_RETURN_IF_ERROR(ok_status());
  FLOTILLA_RETURN_IF_ERROR(data_loss("gap past the end").with_context("tensor 7"));
  return ok_status();
}

Result<int> doubled(Result<int> input) {
  FLOTILLA_ASSIGN_OR_RETURN(const int value, std::move(input));
  return value * 2;
}

TEST(Status, is_ok_by_default) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.to_string(), "ok");
  EXPECT_EQ(status.with_context("anything").message(), "");
}

TEST(Status, carries_a_chain_of_contexts) {
  const Status status = fails_inside().with_context("apply delta 12");
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(status.to_string(), "data_loss: apply delta 12: tensor 7: gap past the end");
  EXPECT_EQ(status.with_context("a").message(), "a: apply delta 12: tensor 7: gap past the end");
}

TEST(Status, every_code_has_a_name_and_an_http_status_of_its_own) {
  std::set<std::string_view> names;
  std::set<int> https;
  for (const Status& status : {ok_status(), invalid_argument(""), permission_denied(""), not_found(""),
                               already_exists(""), failed_precondition(""), data_loss(""), resource_exhausted(""),
                               cancelled(""), internal_error(""), unavailable(""), deadline_exceeded("")}) {
    EXPECT_TRUE(names.insert(status_code_name(status.code())).second);
    EXPECT_TRUE(https.insert(http_status(status.code())).second);
  }
  EXPECT_EQ(names.count("unknown"), 0u);
}

TEST(Status, of_a_system_call_has_the_code_that_fits) {
  const auto code = [](int error) { return errno_status(error, "open x").code(); };
  EXPECT_EQ(code(ENOENT), StatusCode::kNotFound);
  EXPECT_EQ(code(EEXIST), StatusCode::kAlreadyExists);
  EXPECT_EQ(code(EACCES), StatusCode::kPermissionDenied);
  EXPECT_EQ(code(EROFS), StatusCode::kPermissionDenied);
  EXPECT_EQ(code(ENOSPC), StatusCode::kResourceExhausted);
  EXPECT_EQ(code(EISDIR), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(EIO), StatusCode::kUnavailable);
  EXPECT_EQ(errno_status(ENOENT, "open x").message(), "open x: No such file or directory");
}

TEST(Result, holds_a_value_or_the_reason_of_its_absence) {
  EXPECT_EQ(doubled(21).value(), 42);
  const auto failed = doubled(not_found("no number"));
  EXPECT_FALSE(failed.ok());
  EXPECT_EQ(failed.status().message(), "no number");
  EXPECT_EQ(doubled(not_found("no number")).with_context("double").status().message(), "double: no number");
  EXPECT_EQ(doubled(1).with_context("double").value(), 2);
}

TEST(Result, holds_what_can_only_be_moved) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(3));
  const std::unique_ptr<int> taken = std::move(result).value();
  EXPECT_EQ(*taken, 3);
}

TEST(ResultDeathTest, the_value_of_an_error_is_a_bug) {
  const Result<int> failed(not_found("no number"));
  EXPECT_DEATH((void)failed.value(), "no number");
  EXPECT_DEATH((void)Result<int>(ok_status()), "needs an error");
  EXPECT_DEATH(FLOTILLA_CHECK(1 > 2), "1 > 2");
}

}  // namespace
}  // namespace flotilla
