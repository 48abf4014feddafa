#pragma once

#include <string>
#include <string_view>

#include "store/aws_config.h"
#include "store/url.h"

namespace flotilla {

// s3://BUCKET[/PREFIX][?NAME=VALUE&...], with the names endpoint (http://HOST:PORT or https://...), region, style (path
// or virtual), profile, pin (sha256//BASE64, of the server's public key) and single-writer (yes: the server does not
// write conditionally). Values may be percent-encoded. Or
// https://HOST[:PORT][?...]: a server like ours, where the first name of a key is its bucket.
struct S3Address {
  std::string bucket;  // empty: the first name of each key
  std::string prefix;  // keys go below it; without a slash at its end, may be empty
  std::string endpoint;
  std::string region;
  std::string style;
  std::string profile;
  std::string pin;
  std::string single_writer;  // "yes" or empty
};

Result<S3Address> parse_s3_address(std::string_view text);

// Where requests go.
struct S3Target {
  Url endpoint;        // in virtual-host style with the bucket in front of the host
  std::string bucket;  // empty: part of the keys
  std::string prefix;
  std::string region;
  bool path_style = true;
  bool amazon = false;  // the host follows from the region

  // The path of a request for a key of the bucket, or for the bucket itself when the key is empty.
  std::string path(std::string_view key) const;
  std::string object_key(std::string_view key) const {
    return prefix.empty() ? std::string(key) : prefix + "/" + std::string(key);
  }
  // For messages: "s3://bucket/key", or the server's address and the key.
  std::string where(std::string_view object) const;
  // The same bucket in another region. Only the signature changes where the host was given.
  S3Target in_region(std::string_view other) const;
};

// What the address leaves open comes from the settings, then from what Amazon does: region us-east-1, its endpoint, and
// there virtual-host style for buckets whose name is one label of a host name. Elsewhere the default is path style.
Result<S3Target> s3_target(const S3Address& address, const AwsSettings& settings);

}  // namespace flotilla
