#include "config/config.h"

#include <charconv>

namespace flotilla {
namespace {

template <typename... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <typename... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

}  // namespace

nlohmann::json schema_json(const Schema& schema) {
  using nlohmann::json;
  json result = json::object();
  for (const Section& section : schema) {
    json& object = result[std::string(section.name)] = json::object();
    for (const Field& field : section.fields) {
      object[std::string(field.name)] =
          std::visit(Overloaded{[](const EnumTarget& t) { return json(t.names[t.get(t.value)]); },
                                [](const Seconds* v) { return json(v->count()); },
                                [](const std::filesystem::path* v) { return json(v->string()); },
                                [&](const float*) {
                                  // The shortest text, so that 0.2f is 0.2 and not 0.20000000298.
                                  const std::string text = value_text(field);
                                  double value = 0;
                                  std::from_chars(text.data(), text.data() + text.size(), value);
                                  return json(value);
                                },
                                [](const auto* v) { return json(*v); }},
                     field.target);
    }
  }
  return result;
}

}  // namespace flotilla
