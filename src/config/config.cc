#include "config/config.h"

#include <charconv>

namespace flotilla {

nlohmann::json schema_json(const Schema& schema) {
  using nlohmann::json;
  const auto value_of = [](const Field& field) {
    return std::visit(
        [&]<typename T>(const T& target) -> json {
          if constexpr (std::is_same_v<T, EnumTarget>) {
            return target.names[target.get(target.value)];
          } else if constexpr (std::is_same_v<T, Seconds*>) {
            return target->count();
          } else if constexpr (std::is_same_v<T, std::filesystem::path*>) {
            return target->string();
          } else if constexpr (std::is_same_v<T, float*>) {
            // The shortest text, so that 0.2f is 0.2 and not 0.20000000298.
            const std::string text = value_text(field);
            double value = 0;
            std::from_chars(text.data(), text.data() + text.size(), value);
            return value;
          } else {
            return *target;
          }
        },
        field.target);
  };
  json result = json::object();
  for (const Section& section : schema) {
    json& object = result[std::string(section.name)] = json::object();
    for (const Field& field : section.fields) object[std::string(field.name)] = value_of(field);
  }
  return result;
}

}  // namespace flotilla
