#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "store/s3_address.h"

// Addresses, URLs and the files of AWS' tools are understood or refused; what is understood is whole.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace flotilla;
  const std::string text(as_text({data, size}));
  const Environment none = [](const char*) { return std::nullopt; };
  if (const auto url = parse_url(text); url.ok()) {
    const auto again = parse_url(url->text());
    FLOTILLA_CHECK(again.ok() && again->text() == url->text());
  }
  if (const auto address = parse_s3_address(text); address.ok()) {
    if (const auto target = s3_target(*address, {}); target.ok()) FLOTILLA_CHECK(target->path("k").ends_with("/k"));
  }
  if (const auto settings = aws_settings({text, text}, "", none); settings.ok() && settings->credentials) {
    FLOTILLA_CHECK(!settings->credentials->access_key.empty() && !settings->credentials->secret_key.empty());
  }
  return 0;
}
