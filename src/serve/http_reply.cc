#include "serve/http_reply.h"

#include <charconv>
#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include "base/hashing.h"

namespace flotilla {
namespace {

std::string_view reason_phrase(int status) {
  switch (status) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 413: return "Payload Too Large";
    case 415: return "Unsupported Media Type";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    default: return "Internal Server Error";
  }
}

}  // namespace

std::string http_head(int status, std::string_view content_type, bool keep_alive,
                      const std::vector<std::string>& fields) {
  std::string head = fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\nConnection: {}\r\nCache-Control: no-store\r\n",
                                 status, reason_phrase(status), content_type, keep_alive ? "keep-alive" : "close");
  for (const std::string& field : fields) head += field + "\r\n";
  return head + "\r\n";
}

std::string http_reply(int status, std::string_view content_type, std::string_view body, bool keep_alive,
                       std::vector<std::string> fields) {
  fields.push_back(fmt::format("Content-Length: {}", body.size()));
  return http_head(status, content_type, keep_alive, fields).append(body);
}

std::string http_reply(const ApiError& error, bool keep_alive, std::vector<std::string> fields) {
  if (error.http_status == 401) fields.push_back("WWW-Authenticate: Bearer");
  if (error.http_status == 429 || error.http_status == 503) fields.push_back("Retry-After: 1");
  return http_reply(error.http_status, "application/json", error.to_json(), keep_alive, std::move(fields));
}

std::string http_chunk(std::string_view data) {
  return data.empty() ? std::string() : fmt::format("{:x}\r\n{}\r\n", data.size(), data);
}

std::optional<std::string> percent_decoded(std::string_view text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    std::uint8_t byte = 0;
    const std::string_view digits = text.substr(i + 1, 2);
    const char* end = digits.data() + digits.size();
    const auto [stop, error] = std::from_chars(digits.data(), end, byte, 16);
    if (digits.size() != 2 || error != std::errc() || stop != end) return std::nullopt;
    decoded += static_cast<char>(byte);
    i += 2;
  }
  return decoded;
}

bool same_secret(std::string_view a, std::string_view b) {
  // Digests have one length, and where they differ says nothing about where the texts do.
  const Sha256Digest x = sha256(a), y = sha256(b);
  std::uint8_t difference = 0;
  for (std::size_t i = 0; i < x.bytes.size(); ++i) difference |= x.bytes[i] ^ y.bytes[i];
  return difference == 0;
}

bool names_loopback(std::string_view host) {
  std::string_view name = host;
  if (const std::size_t colon = name.rfind(':'); colon != std::string_view::npos && !name.ends_with(']')) {
    name = name.substr(0, colon);
  }
  const bool numbers = name.find_first_not_of("0123456789.") == std::string_view::npos;
  return name == "localhost" || name == "[::1]" || (numbers && name.starts_with("127."));
}

}  // namespace flotilla
