#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "hub/s3_xml.h"
#include "store/s3_xml.h"

// What was read and is written again reads the same.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace flotilla;
  const std::string_view text = as_text({data, size});
  if (const auto body = read_delete_body(text); body.ok()) FLOTILLA_CHECK(!body->keys.empty());
  if (const auto parts = read_complete_body(text); parts.ok()) {
    for (std::size_t i = 1; i < parts->size(); ++i) FLOTILLA_CHECK((*parts)[i - 1].number < (*parts)[i].number);
  }
  const std::string escaped = xml_escaped(text.substr(0, text.find_first_of("&<")));
  const auto again = parse_xml("<a>" + escaped + "</a>");
  FLOTILLA_CHECK(again.ok() && xml_escaped(again->text) == escaped);
  return 0;
}
