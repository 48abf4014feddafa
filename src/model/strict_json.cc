#include "model/strict_json.h"

#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace flotilla {
namespace {

constexpr int kMaxDepth = 64;

// What nlohmann's parser does not complain about. The error leaves the parser as an exception, so that parsing ends
// there.
class StructureCheck {
 public:
  bool operator()(int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    if (depth >= kMaxDepth) throw Refused{fmt::format("JSON is nested deeper than {}", kMaxDepth)};
    if (event == Event::object_start) keys_.emplace_back();
    if (event == Event::object_end) keys_.pop_back();
    if (event == Event::key && !keys_.back().insert(parsed.get<std::string>()).second) {
      throw Refused{fmt::format("JSON key \"{}\" occurs twice in one object", parsed.get<std::string>())};
    }
    return true;
  }

  struct Refused {
    std::string message;
  };

 private:
  std::vector<std::set<std::string>> keys_;
};

}  // namespace

Result<nlohmann::json> parse_strict_json(std::string_view text) {
  StructureCheck check;
  try {
    return nlohmann::json::parse(text, std::ref(check));
  } catch (const StructureCheck::Refused& refused) {
    return data_loss(refused.message);
  } catch (const nlohmann::json::exception& error) {
    return data_loss(error.what());
  }
}

}  // namespace flotilla
