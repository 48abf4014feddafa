#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "hub/s3_request.h"
#include "store/object_store.h"

// A line each: method, target, headers as name:value. Whatever is accepted has a key that a folder can hold; a claim
// that is read can be verified.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace flotilla;
  std::string_view rest = as_text({data, size});
  const auto line = [&] {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view found = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    return found;
  };
  SigV4Request request;
  request.method = line();
  const std::string target(line());
  while (!rest.empty()) {
    const std::string_view header = line();
    const std::size_t colon = std::min(header.find(':'), header.size());
    request.headers.emplace_back(header.substr(0, colon), header.substr(std::min(colon + 1, header.size())));
  }
  if (!read_request_target(target, request).ok()) return 0;
  if (const auto claim = read_claim(request); claim.ok()) {
    FLOTILLA_CHECK(!verify_request(request, *claim, "secret", claim->scope.time).ok());
  }
  const auto parsed = parse_s3_request(request, target.substr(0, target.find('?')));
  if (const auto* error = std::get_if<S3Error>(&parsed)) {
    FLOTILLA_CHECK(error->http_status >= 400 && !error->code.empty() && !error->message.empty());
    return 0;
  }
  const S3Request& wanted = std::get<S3Request>(parsed);
  FLOTILLA_CHECK(wanted.owner.empty() || check_key(wanted.owner).ok());
  FLOTILLA_CHECK(wanted.key.empty() || (check_key(wanted.key).ok() && wanted.key.starts_with(wanted.owner + "/")));
  FLOTILLA_CHECK(wanted.copy_source.empty() || check_key(wanted.copy_source).ok());
  FLOTILLA_CHECK(wanted.listing.limit <= 1000 && wanted.wait <= kWaitMax && wanted.part_number <= kPartNumberMax);
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1000}, ~std::uint64_t{0}}) {
    if (!wanted.range) break;
    const auto section = section_of(*wanted.range, bytes);
    FLOTILLA_CHECK(!section ||
                   (section->count > 0 && section->count <= bytes && section->offset <= bytes - section->count));
  }
  return 0;
}
