#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/philox.h"
#include "store/http_client.h"
#include "store/s3_address.h"
#include "store/s3_retry.h"
#include "store/s3_xml.h"

namespace flotilla {

struct S3Options {
  Environment environment = process_environment;
  S3RetryPolicy retry;
  HttpTimes times;
  // Objects of at least so many bytes go up in parts, each of which is tried again by itself.
  std::uint64_t multipart_bytes = 64 << 20;
  std::uint64_t part_bytes = 16 << 20;  // S3 takes no part below 5 MiB but the last
  std::function<std::chrono::sys_seconds()> now = [] {
    return std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
  };
};

// One request of S3's API, before it is signed.
struct S3Call {
  std::string method;
  std::string object = {};  // the whole key in the bucket; empty for the bucket itself
  NamedValues query = {};
  NamedValues headers = {};
  ByteSpan body = {};
  // Answers that the caller wants to see; others but success are errors.
  std::vector<int> accepted = {};
  std::chrono::milliseconds answer_within{0};  // see HttpRequest
};

struct S3Answer {
  HttpAnswer head;
  std::string text;     // the body, unless a sink took it
  bool unsure = false;  // an earlier attempt of this call may have had its effect
};

// Signs requests to one bucket, sends them, and does what judge_s3_answer() says about answers: tries again after a
// pause, corrects its clock by the server's date, reads keys anew, follows the bucket into its region. Thread safe.
class S3Client {
 public:
  // Where the address and the user's files and environment say. The errors of parse_s3_address() and aws_settings();
  // permission_denied when there are no keys.
  static Result<std::unique_ptr<S3Client>> open(std::string_view address, S3Options options, std::stop_token calm);

  const S3Options& options() const { return options_; }
  std::string object_key(std::string_view key) const;
  // Whether the first name of a key is its bucket.
  bool buckets_in_keys() const { return address_.bucket.empty(); }
  bool single_writer() const { return !address_.single_writer.empty(); }
  // For messages: "s3://bucket/prefix/key".
  std::string where(std::string_view key) const;

  // `make` is asked before each attempt: a download goes on where the last one was cut. `sink` gets the body of a
  // success; without one it is in the answer. Attempts that moved something do not count as failures. A stop ends it
  // with cancelled; once `calm` of open() is requested, nothing is tried a second time.
  Result<S3Answer> call(const std::function<S3Call()>& make, const BodySink& sink, const StopEvent& stop);
  Result<S3Answer> call(const S3Call& call);

 private:
  S3Client(S3Address address, S3Options options) : address_(std::move(address)), options_(std::move(options)) {}

  struct Attempt {
    Status status;
    S3Remedy remedy = S3Remedy::kNone;
    S3Answer answer;
    S3Refusal error;
    bool sent = false;
    std::uint64_t moved = 0;
  };
  Attempt attempt(const S3Call& call, const BodySink& sink, const StopEvent& stop);
  void judge(const S3Call& call, const S3Target& target, Attempt& attempt) const;
  // Whether a new attempt has a chance now.
  bool remedy(const Attempt& attempt);
  bool correct_clock(const Attempt& attempt);
  bool read_keys_again();
  bool follow_region(const Attempt& attempt);
  Status read_settings();
  double uniform();

  const S3Address address_;
  const S3Options options_;
  std::unique_ptr<StopEvent> calm_;
  std::unique_ptr<HttpClient> http_;
  mutable std::mutex mutex_;
  AwsCredentials credentials_;
  std::string key_source_;
  S3Target target_;
  std::chrono::seconds clock_offset_{0};  // the server's clock minus ours
  PhiloxStream random_{0, 0};
};

}  // namespace flotilla
