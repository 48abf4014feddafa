#include "store/url.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "store/sigv4.h"

namespace flotilla {
namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return result;
}

Status read_host(std::string_view text, Url& url) {
  const auto wrong = [](std::string_view what) { return invalid_argument(fmt::format("not a URL: {}", what)); };
  std::string_view port;
  const bool bracket = text.starts_with('[');
  const std::size_t end = bracket ? text.find(']') : std::min(text.find(':'), text.size());
  if (end == text.npos) return wrong("'[' without ']'");
  url.host = lower(text.substr(bracket ? 1 : 0, end - (bracket ? 1 : 0)));
  std::string_view rest = text.substr(bracket ? end + 1 : end);
  if (url.host.empty()) return wrong("no host");
  const std::string_view allowed = bracket ? "0123456789abcdef:." : "abcdefghijklmnopqrstuvwxyz0123456789-._";
  if (url.host.find_first_not_of(allowed) != url.host.npos) return wrong("a byte that no host has");
  url.port = url.tls ? 443 : 80;
  if (rest.empty()) return ok_status();
  port = rest.substr(1);
  const auto [stop, error] = std::from_chars(port.data(), port.data() + port.size(), url.port);
  if (rest[0] != ':' || error != std::errc() || stop != port.data() + port.size() || url.port < 1 || url.port > 65535) {
    return wrong("the port is not a number from 1 to 65535");
  }
  return ok_status();
}

bool matches(std::string_view host, std::string_view pattern) {
  if (pattern == "*") return true;
  while (pattern.starts_with('.')) pattern.remove_prefix(1);
  if (pattern.starts_with('[') && pattern.ends_with(']')) pattern = pattern.substr(1, pattern.size() - 2);
  if (pattern.empty() || !host.ends_with(pattern)) return false;
  return host.size() == pattern.size() || host[host.size() - pattern.size() - 1] == '.';
}

}  // namespace

std::string host_text(std::string_view host) {
  return host.find(':') == host.npos ? std::string(host) : fmt::format("[{}]", host);
}

std::string Url::host_and_port() const { return fmt::format("{}:{}", host_text(host), port); }

std::string Url::authority() const {
  const std::string whole = host_and_port();
  return port == (tls ? 443 : 80) ? whole.substr(0, whole.rfind(':')) : whole;
}

std::string Url::text() const {
  return fmt::format("{}://{}{}", tls ? "https" : "http", authority(), uri_encode(path, true));
}

Result<Url> parse_url(std::string_view text) {
  Url url;
  const std::size_t colon = text.find("://");
  const std::string scheme = lower(text.substr(0, std::min(colon, text.size())));
  if (colon == text.npos || (scheme != "http" && scheme != "https")) {
    return invalid_argument("not a URL: expected http://HOST or https://HOST");
  }
  url.tls = scheme == "https";
  text.remove_prefix(colon + 3);
  if (text.find_first_of("?#") != text.npos) return invalid_argument("not a URL: '?' and '#' have no place in it");
  const std::size_t slash = std::min(text.find('/'), text.size());
  std::string_view host = text.substr(0, slash);
  FLOTILLA_ASSIGN_OR_RETURN(url.path, uri_decode(text.substr(slash)));
  while (url.path.ends_with('/')) url.path.pop_back();
  if (const std::size_t at = host.rfind('@'); at != host.npos) {
    const std::string_view user = host.substr(0, at);
    const std::size_t between = std::min(user.find(':'), user.size());
    FLOTILLA_ASSIGN_OR_RETURN(url.user, uri_decode(user.substr(0, between)));
    if (between < user.size()) {
      FLOTILLA_ASSIGN_OR_RETURN(url.password, uri_decode(user.substr(between + 1)));
    }
    host.remove_prefix(at + 1);
  }
  FLOTILLA_RETURN_IF_ERROR(read_host(host, url));
  return url;
}

std::optional<std::string> process_environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? std::optional<std::string>(value) : std::nullopt;
}

Result<std::optional<Url>> proxy_for(const Url& url, const Environment& environment) {
  const auto first = [&](std::initializer_list<const char*> names) -> std::optional<std::string> {
    for (const char* name : names) {
      if (auto value = environment(name)) return value;
    }
    return std::nullopt;
  };
  std::string direct = lower(first({"no_proxy", "NO_PROXY"}).value_or(""));
  std::replace(direct.begin(), direct.end(), ' ', ',');
  for (std::size_t begin = 0; begin < direct.size();) {
    const std::size_t end = std::min(direct.find(',', begin), direct.size());
    if (matches(url.host, std::string_view(direct).substr(begin, end - begin))) return std::optional<Url>();
    begin = end + 1;
  }
  const auto text = url.tls ? first({"https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"})
                            : first({"http_proxy", "all_proxy", "ALL_PROXY"});
  if (!text) return std::optional<Url>();
  auto proxy = parse_url(text->find("://") == text->npos ? "http://" + *text : *text).with_context("proxy");
  if (!proxy.ok()) return std::move(proxy).status();
  if (proxy->tls) return invalid_argument("proxy: expected http://HOST:PORT; a proxy is not spoken to over TLS");
  return std::optional<Url>(*std::move(proxy));
}

}  // namespace flotilla
