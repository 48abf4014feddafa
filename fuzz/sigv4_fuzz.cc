#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "store/sigv4.h"

// The first line is a target, the others headers: a request that is understood keeps its meaning when it is written
// again, and none is believed that was not signed with the key.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace flotilla;
  std::string_view text = as_text({data, size});
  const auto line = [&] {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view result = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    return result;
  };
  SigV4Request request{"GET", "", {}, {}};
  if (!read_request_target(line(), request).ok()) return 0;
  SigV4Request again{"GET", "", {}, {}};
  FLOTILLA_CHECK(read_request_target(request_target(request), again).ok());
  FLOTILLA_CHECK(again.path == request.path && request_target(again) == request_target(request));
  while (!text.empty()) {
    const std::string_view header = line();
    const std::size_t colon = std::min(header.find(':'), header.size());
    request.headers.emplace_back(header.substr(0, colon), header.substr(std::min(colon + 1, header.size())));
  }
  if (const auto claim = read_claim(request); claim.ok()) {
    FLOTILLA_CHECK(!verify_request(request, *claim, "a key that nobody has", claim->scope.time).ok());
  }
  return 0;
}
