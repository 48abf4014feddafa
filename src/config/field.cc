#include "config/field.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include <fmt/format.h>

namespace flotilla {
namespace {

template <typename... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <typename... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

template <typename T>
constexpr bool kIsFloating = std::is_same_v<T, float> || std::is_same_v<T, double> || std::is_same_v<T, Seconds>;
template <typename T>
constexpr bool kIsInteger = std::is_integral_v<T> && !std::is_same_v<T, bool>;

template <typename T>
std::string floating_text(T value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";  // TOML's integers are another type
  return text;
}

// Unicode standard, table 3-7: the well-formed byte sequences.
bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto at = [&](std::size_t offset) -> unsigned {
      return i + offset < text.size() ? static_cast<unsigned char>(text[i + offset]) : 0;
    };
    const unsigned lead = at(0);
    const std::size_t length = lead < 0x80   ? 1
                               : lead < 0xc2 ? 0
                               : lead < 0xe0 ? 2
                               : lead < 0xf0 ? 3
                               : lead < 0xf5 ? 4
                                             : 0;
    if (length == 0) return false;
    for (std::size_t k = 1; k < length; ++k) {
      if ((at(k) & 0xc0) != 0x80) return false;
    }
    if ((lead == 0xe0 && at(1) < 0xa0) || (lead == 0xed && at(1) > 0x9f) || (lead == 0xf0 && at(1) < 0x90) ||
        (lead == 0xf4 && at(1) > 0x8f)) {
      return false;
    }
    i += length;
  }
  return true;
}

std::string toml_string(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      result += fmt::format("\\u{:04x}", byte);
    } else {
      result += c;
    }
  }
  return result + '"';
}

std::string got_text(const FieldValue& value) {
  return std::visit(
      Overloaded{[](bool v) { return std::string(v ? "true" : "false"); },
                 [](std::int64_t v) { return fmt::format("{}", v); }, [](double v) { return floating_text(v); },
                 [](const std::string& v) { return quoted_text(v) + " (text)"; }},
      value);
}

std::string with_range_and_unit(std::string_view type, const Field& field, const Range& range) {
  const std::string allowed = range.text();
  return fmt::format("{}{}{}{}", type, allowed.empty() ? "" : ", ", allowed,
                     field.unit.empty() ? std::string() : fmt::format(" ({})", field.unit));
}

// The declared range within what the type can hold; of uint64 what TOML's signed integers can hold.
template <typename T>
Range range_of(const Field& field) {
  Range range = field.range;
  if constexpr (kIsInteger<T>) {
    if constexpr (!std::is_same_v<T, std::int64_t>)
      range.min = std::max(range.min, static_cast<double>(std::numeric_limits<T>::min()));
    if constexpr (std::is_same_v<T, std::int32_t>)
      range.max = std::min(range.max, static_cast<double>(std::numeric_limits<T>::max()));
  }
  return range;
}

Status mismatch(const Field& field, std::string_view got) {
  return invalid_argument(fmt::format("expected {}, got {}", expected_text(field), got));
}

Status check_text(std::string_view text) {
  if (!is_utf8(text)) return invalid_argument("expected UTF-8 text, got other bytes");
  if (text.find('\0') != std::string_view::npos) return invalid_argument("expected text without a zero byte");
  return ok_status();
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, substituted}));
    }
  }
  return row.back();
}

// The quadratic distance must not see a megabyte of a hostile file.
std::string_view comparable(std::string_view written) { return written.substr(0, 128); }

template <typename T>
std::optional<T> parse_number(std::string_view text) {
  T value;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

bool Range::contains(double value) const {
  return std::isfinite(value) && (above_min ? value > min : value >= min) && value <= max;
}

std::string Range::text() const {
  const bool has_min = std::isfinite(min), has_max = std::isfinite(max);
  if (has_min && has_max)
    return above_min ? fmt::format("above {}, at most {}", min, max) : fmt::format("{} to {}", min, max);
  if (has_min) return fmt::format("{} {}", above_min ? "above" : "at least", min);
  return has_max ? fmt::format("at most {}", max) : "";
}

std::string expected_text(const Field& field) {
  return std::visit(
      [&]<typename T>(const T& target) -> std::string {
        if constexpr (std::is_same_v<T, EnumTarget>) {
          std::string text;
          for (std::size_t i = 0; i < target.names.size(); ++i) {
            text += fmt::format("{}\"{}\"",
                                i == 0                         ? ""
                                : i + 1 == target.names.size() ? " or "
                                                               : ", ",
                                target.names[i]);
          }
          return text;
        } else {
          using Value = std::remove_pointer_t<T>;
          if constexpr (std::is_same_v<Value, bool>)
            return "true or false";
          else if constexpr (kIsInteger<Value>)
            return with_range_and_unit("an integer", field, range_of<Value>(field));
          else if constexpr (kIsFloating<Value>)
            return with_range_and_unit("a number", field, field.range);
          else if constexpr (std::is_same_v<Value, std::filesystem::path>)
            return "a path";
          else
            return "text";
        }
      },
      field.target);
}

std::string value_text(const Field& field) {
  return std::visit(
      Overloaded{[](const EnumTarget& t) { return fmt::format("\"{}\"", t.names[t.get(t.value)]); },
                 [](const bool* v) { return std::string(*v ? "true" : "false"); },
                 [](const float* v) { return floating_text(*v); }, [](const double* v) { return floating_text(*v); },
                 [](const Seconds* v) { return floating_text(v->count()); },
                 [](const std::string* v) { return toml_string(*v); },
                 [](const std::filesystem::path* v) { return toml_string(v->string()); },
                 [](const auto* v) { return fmt::format("{}", *v); }},
      field.target);
}

Status set_value(const Field& field, const FieldValue& value) {
  const auto* text = std::get_if<std::string>(&value);
  const auto* integer = std::get_if<std::int64_t>(&value);
  return std::visit(
      [&]<typename T>(const T& target) -> Status {
        if constexpr (std::is_same_v<T, EnumTarget>) {
          const auto found = text ? std::find(target.names.begin(), target.names.end(), *text) : target.names.end();
          if (found == target.names.end()) return mismatch(field, got_text(value));
          target.set(target.value, static_cast<std::size_t>(found - target.names.begin()));
        } else {
          using Value = std::remove_pointer_t<T>;
          if constexpr (std::is_same_v<Value, bool>) {
            const auto* boolean = std::get_if<bool>(&value);
            if (!boolean) return mismatch(field, got_text(value));
            *target = *boolean;
          } else if constexpr (kIsInteger<Value>) {
            if (!integer || !range_of<Value>(field).contains(static_cast<double>(*integer)))
              return mismatch(field, got_text(value));
            *target = static_cast<Value>(*integer);
          } else if constexpr (kIsFloating<Value>) {
            const auto* floating = std::get_if<double>(&value);
            if (!integer && !floating) return mismatch(field, got_text(value));
            const double number = integer ? static_cast<double>(*integer) : *floating;
            const auto converted = static_cast<Value>(number);
            double kept;
            if constexpr (std::is_same_v<Value, Seconds>) {
              kept = converted.count();
            } else {
              kept = static_cast<double>(converted);
            }
            // Both: 1e300 is infinite as a float, and 1 + 1e-12 would pass as one although it is above 1.
            if (!field.range.contains(number) || !std::isfinite(kept)) return mismatch(field, got_text(value));
            *target = converted;
          } else {
            if (!text) return mismatch(field, got_text(value));
            FLOTILLA_RETURN_IF_ERROR(check_text(*text));
            *target = *text;
          }
        }
        return ok_status();
      },
      field.target);
}

Status set_from_text(const Field& field, std::string_view text) {
  return std::visit(
      [&]<typename T>(const T&) -> Status {
        using Value = std::remove_pointer_t<T>;
        if constexpr (std::is_same_v<Value, bool>) {
          if (text != "true" && text != "false") return mismatch(field, quoted_text(text));
          return set_value(field, text == "true");
        } else if constexpr (kIsInteger<Value>) {
          const auto number = parse_number<std::int64_t>(text);
          return number ? set_value(field, *number) : mismatch(field, quoted_text(text));
        } else if constexpr (kIsFloating<Value>) {
          const auto number = parse_number<double>(text);
          return number ? set_value(field, *number) : mismatch(field, quoted_text(text));
        } else {
          return set_value(field, std::string(text));
        }
      },
      field.target);
}

Status check_value(const Field& field) {
  return std::visit(Overloaded{[](const EnumTarget&) { return ok_status(); }, [](const bool*) { return ok_status(); },
                               [](const std::string* v) { return check_text(*v); },
                               [](const std::filesystem::path* v) { return check_text(v->string()); },
                               [&](const Seconds* v) { return set_value(field, v->count()); },
                               [&](const float* v) {
                                 const double value = static_cast<double>(*v);
                                 return field.range.contains(value) ? ok_status()
                                                                    : mismatch(field, floating_text(value));
                               },
                               [&](const double* v) { return set_value(field, *v); },
                               [&](const std::uint64_t* v) {
                                 if (*v > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
                                   return mismatch(field, fmt::format("{}", *v));
                                 }
                                 return set_value(field, static_cast<std::int64_t>(*v));
                               },
                               [&](const auto* v) { return set_value(field, static_cast<std::int64_t>(*v)); }},
                    field.target);
}

std::string nearest_key(const Schema& schema, std::string_view written) {
  written = comparable(written);
  const std::string_view last = written.substr(written.find('.') == std::string_view::npos ? 0 : written.find('.') + 1);
  std::string nearest;
  std::size_t best = std::numeric_limits<std::size_t>::max();
  for (const Section& section : schema) {
    for (const Field& field : section.fields) {
      std::string key = fmt::format("{}.{}", section.name, field.name);
      // A key under the wrong section is one mistake, however long the names of the sections are.
      const std::size_t distance = std::min(edit_distance(written, key), edit_distance(last, field.name) + 1);
      if (distance < best) {
        best = distance;
        nearest = std::move(key);
      }
    }
  }
  return nearest;
}

std::string nearest_section(const Schema& schema, std::string_view written) {
  written = comparable(written);
  const auto nearest = std::min_element(schema.begin(), schema.end(), [&](const Section& a, const Section& b) {
    return edit_distance(written, a.name) < edit_distance(written, b.name);
  });
  return nearest == schema.end() ? std::string() : std::string(nearest->name);
}

std::string quoted_text(std::string_view text) {
  constexpr std::size_t kShown = 60;
  std::string shown = toml_string(text.substr(0, kShown));
  if (text.size() > kShown) shown += "...";
  return shown;
}

}  // namespace flotilla
