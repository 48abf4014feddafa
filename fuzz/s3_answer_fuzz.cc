#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "store/s3_xml.h"

// What a server answers is read or refused; a listing that is read is in order, and one that goes on says after what.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace flotilla;
  const std::string_view text = as_text({data, size});
  if (const auto listing = parse_s3_listing(text); listing.ok()) {
    for (std::size_t i = 1; i < listing->entries.size(); ++i) {
      FLOTILLA_CHECK(listing->entries[i - 1].key < listing->entries[i].key);
    }
    FLOTILLA_CHECK(!listing->truncated || !listing->entries.empty());
  }
  if (const auto upload = parse_upload_id(text); upload.ok()) FLOTILLA_CHECK(!upload->empty());
  if (const auto etag = parse_completed_etag(text); etag.ok()) {
    FLOTILLA_CHECK(parse_xml(complete_upload_xml({*etag}))->children.front().child_text("ETag") == *etag);
  }
  parse_s3_error(text);
  return 0;
}
