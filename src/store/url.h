#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace flotilla {

// An http or https address: scheme://[user[:password]@]host[:port][/path]. IPv6 hosts stand in brackets in the text and
// without them here.
struct Url {
  bool tls = false;
  std::string user;  // decoded, as is the password
  std::string password;
  std::string host;  // in lower case
  int port = 0;
  std::string path;  // decoded, without the slash at its end; empty or "/..."

  // As the header Host has it: the scheme's own port is left out.
  std::string authority() const;
  // "host:port", always.
  std::string host_and_port() const;
  std::string text() const;  // without user and password
};

// A host as it stands in a URL: an IPv6 address in brackets.
std::string host_text(std::string_view host);

// invalid_argument for anything else; a query or a fragment too. Never quotes a password.
Result<Url> parse_url(std::string_view text);

// Environment variables by name; empty ones count as missing.
using Environment = std::function<std::optional<std::string>(const char*)>;
std::optional<std::string> process_environment(const char* name);

// The proxy for requests to a URL by the variables that curl reads: http_proxy (lower case only: a server may be made
// to set the other), https_proxy, all_proxy, and no_proxy, which lists hosts, domains (all hosts below count too),
// addresses, or "*". Only HTTP proxies: invalid_argument for a SOCKS one.
Result<std::optional<Url>> proxy_for(const Url& url, const Environment& environment);

}  // namespace flotilla
