#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/api_error.h"

namespace flotilla {

// The head of an HTTP/1.1 answer. `fields` are whole lines without their ends.
std::string http_head(int status, std::string_view content_type, bool keep_alive,
                      const std::vector<std::string>& fields);
// A whole answer.
std::string http_reply(int status, std::string_view content_type, std::string_view body, bool keep_alive,
                       std::vector<std::string> fields = {});
std::string http_reply(const ApiError& error, bool keep_alive, std::vector<std::string> fields = {});
// One chunk of a chunked body. Empty data would end the body, and gives "".
std::string http_chunk(std::string_view data);
inline constexpr std::string_view kHttpLastChunk = "0\r\n\r\n";

// A part of a path with each %XX as the byte that it stands for; none where two hexadecimal digits are missing.
std::optional<std::string> percent_decoded(std::string_view text);
// Equal, found out in a time that does not depend on where they differ.
bool same_secret(std::string_view a, std::string_view b);
// The host of a "Host" field names this machine only: localhost, 127.x.x.x or [::1], with or without a port.
bool names_loopback(std::string_view host);

}  // namespace flotilla
