#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "base/status.h"

namespace flotilla {

using Seconds = std::chrono::duration<double>;

// Which numbers a field may hold. Not-a-number and infinity are never allowed.
struct Range {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;  // min itself is excluded

  bool contains(double value) const;
  // "1 to 4096", "at least 1", "above 0", "above 0, at most 1"; empty when every number is allowed.
  std::string text() const;
};
constexpr Range between(double min, double max) { return {min, max}; }
constexpr Range at_least(double min) { return {min}; }
constexpr Range above(double min, double max = std::numeric_limits<double>::infinity()) { return {min, max, true}; }

// The texts of an enumeration whose enumerators count from 0, in their order. Specialise beside the enumeration:
//   template <> inline constexpr std::array<std::string_view, 2> enum_names<Mode> = {"async", "sequential"};
template <typename E>
inline constexpr std::array<std::string_view, 0> enum_names = {};

template <typename E>
  requires std::is_enum_v<E>
std::string_view enum_name(E value) {
  return enum_names<E>[static_cast<std::size_t>(value)];
}

struct EnumTarget {
  void* value;
  std::span<const std::string_view> names;
  std::size_t (*get)(const void*);
  void (*set)(void*, std::size_t);
};

// One setting: what its declaration says, and where its value lives.
struct Field {
  std::string_view name;
  std::string_view unit;  // empty: none
  Range range;
  std::string_view help;  // one line
  std::variant<bool*, std::int32_t*, std::int64_t*, std::uint64_t*, float*, double*, Seconds*, std::string*,
               std::filesystem::path*, EnumTarget>
      target;
};

struct Section {
  std::string_view name;
  std::string_view help;
  std::vector<Field> fields;
};

// All settings of one config object. Points into it: valid while the object lives and stays where it is.
using Schema = std::vector<Section>;

// A value as a file or a command line states it.
using FieldValue = std::variant<bool, std::int64_t, double, std::string>;

// What may be written for the field: "an integer, 1 to 4096 (groups)", "\"async\" or \"sequential\"".
std::string expected_text(const Field& field);
// The present value as TOML, which is also how documents show it. Numbers are the shortest text that reads back equal.
std::string value_text(const Field& field);
// Assigns the value. invalid_argument "expected ..., got ..." when its type or range is wrong; the field is unchanged.
Status set_value(const Field& field, const FieldValue& value);
// The same for a value that came as text without a type, as on a command line.
Status set_from_text(const Field& field, std::string_view text);
// Checks the value that is there, for fields that the program itself assigned.
Status check_value(const Field& field);
// "section.key" of the known key that is nearest to what was written, by edit distance.
std::string nearest_key(const Schema& schema, std::string_view written);
std::string nearest_section(const Schema& schema, std::string_view written);
// Text from a file or a person, quoted, shortened and with control characters escaped.
std::string quoted_text(std::string_view text);

// The visitor that a config struct's visit() is called with. A section is a struct with
//   template <class V> void visit(V& v) {
//     v(batch_groups, "batch_groups", "groups", between(1, 4096), "Groups in one optimizer step");
//     v(mode, "mode", "How generating and training overlap");
//   }
// and a config is a struct whose visit() names its sections: v.section(learner, "learner", "The learner's loop").
class SchemaBuilder {
 public:
  template <typename S>
  void section(S& fields, std::string_view name, std::string_view help) {
    schema_.push_back({name, help, {}});
    fields.visit(*this);
  }
  // Numbers and durations (whose unit is seconds).
  template <typename T>
  void operator()(T& field, std::string_view name, std::string_view unit, Range range, std::string_view help) {
    schema_.back().fields.push_back({name, unit, range, help, &field});
  }
  // Booleans, text, paths and enumerations.
  template <typename T>
  void operator()(T& field, std::string_view name, std::string_view help) {
    if constexpr (std::is_enum_v<T>) {
      static_assert(!enum_names<T>.empty(), "specialise enum_names for this enumeration");
      const EnumTarget target{&field, enum_names<T>,
                              [](const void* value) { return static_cast<std::size_t>(*static_cast<const T*>(value)); },
                              [](void* value, std::size_t index) { *static_cast<T*>(value) = static_cast<T>(index); }};
      schema_.back().fields.push_back({name, {}, {}, help, target});
    } else {
      schema_.back().fields.push_back({name, {}, {}, help, &field});
    }
  }
  Schema take() && { return std::move(schema_); }

 private:
  Schema schema_;
};

template <typename Config>
Schema schema_of(Config& config) {
  SchemaBuilder builder;
  config.visit(builder);
  return std::move(builder).take();
}

}  // namespace flotilla
