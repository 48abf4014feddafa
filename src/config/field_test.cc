#include "config/field.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace flotilla {
enum class Colour { kRed, kGreen, kBlue };
template <>
inline constexpr std::array<std::string_view, 3> enum_names<Colour> = {"red", "green", "blue"};

namespace {

struct AllTypes {
  bool flag = false;
  std::int32_t small = 1;
  std::int64_t large = 2;
  std::uint64_t seed = 3;
  float single = 0.2f;
  double number = 0.5;
  Seconds pause{1.5};
  std::string text = "a \"b\"\\\n";
  std::filesystem::path path = "/x";
  Colour colour = Colour::kGreen;

  template <class V>
  void visit(V& v) {
    v(flag, "flag", "A flag");
    v(small, "small", "groups", between(1, 4096), "A small integer");
    v(large, "large", "", at_least(0), "A large integer");
    v(seed, "seed", "", at_least(0), "A seed");
    v(single, "single", "", above(0, 1), "A float");
    v(number, "number", "", Range{}, "A double");
    v(pause, "pause_seconds", "seconds", at_least(0), "A pause");
    v(text, "text", "Some text");
    v(path, "path", "A path");
    v(colour, "colour", "A colour");
  }
};

struct AllConfig {
  AllTypes all;
  template <class V>
  void visit(V& v) {
    v.section(all, "all", "Every type");
  }
};

class FieldTest : public testing::Test {
 protected:
  const Field& field(std::string_view name) {
    for (const Field& f : schema_[0].fields) {
      if (f.name == name) return f;
    }
    ADD_FAILURE() << name;
    return schema_[0].fields[0];
  }
  std::string set(std::string_view name, const FieldValue& value) { return set_value(field(name), value).message(); }
  std::string set_text(std::string_view name, std::string_view text) {
    return set_from_text(field(name), text).message();
  }

  AllConfig config_;
  Schema schema_ = schema_of(config_);
};

TEST_F(FieldTest, a_schema_points_at_every_member) {
  EXPECT_EQ(schema_.size(), 1u);
  EXPECT_EQ(schema_[0].fields.size(), 10u);
  EXPECT_EQ(set("flag", true), "");
  EXPECT_EQ(set("small", std::int64_t{4096}), "");
  EXPECT_EQ(set("large", std::numeric_limits<std::int64_t>::max()), "");
  EXPECT_EQ(set("seed", std::numeric_limits<std::int64_t>::max()), "");
  EXPECT_EQ(set("single", 0.25), "");
  EXPECT_EQ(set("number", std::int64_t{-3}), "");
  EXPECT_EQ(set("pause_seconds", 0.125), "");
  EXPECT_EQ(set("text", std::string("né")), "");
  EXPECT_EQ(set("path", std::string("b/c")), "");
  EXPECT_EQ(set("colour", std::string("blue")), "");
  EXPECT_TRUE(config_.all.flag);
  EXPECT_EQ(config_.all.small, 4096);
  EXPECT_EQ(config_.all.large, std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(config_.all.seed, static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()));
  EXPECT_EQ(config_.all.single, 0.25f);
  EXPECT_EQ(config_.all.number, -3.0);
  EXPECT_EQ(config_.all.pause, Seconds(0.125));
  EXPECT_EQ(config_.all.text, "né");
  EXPECT_EQ(config_.all.path, "b/c");
  EXPECT_EQ(config_.all.colour, Colour::kBlue);
  EXPECT_EQ(enum_name(config_.all.colour), "blue");
}

TEST_F(FieldTest, values_print_as_toml) {
  EXPECT_EQ(value_text(field("flag")), "false");
  EXPECT_EQ(value_text(field("small")), "1");
  EXPECT_EQ(value_text(field("single")), "0.2");
  EXPECT_EQ(value_text(field("pause_seconds")), "1.5");
  EXPECT_EQ(value_text(field("text")), R"("a \"b\"\\\u000a")");
  EXPECT_EQ(value_text(field("colour")), "\"green\"");
  config_.all.number = 3;
  EXPECT_EQ(value_text(field("number")), "3.0");
  config_.all.number = 1e-6;
  EXPECT_EQ(value_text(field("number")), "1e-06");
}

TEST_F(FieldTest, a_value_of_the_wrong_type_is_refused) {
  EXPECT_EQ(set("flag", std::int64_t{1}), "expected true or false, got 1");
  EXPECT_EQ(set("small", 1.0), "expected an integer, 1 to 4096 (groups), got 1.0");
  EXPECT_EQ(set("small", std::string("many")), "expected an integer, 1 to 4096 (groups), got \"many\" (text)");
  EXPECT_EQ(set("single", true), "expected a number, above 0, at most 1, got true");
  EXPECT_EQ(set("number", std::string("1")), "expected a number, got \"1\" (text)");
  EXPECT_EQ(set("text", std::int64_t{7}), "expected text, got 7");
  EXPECT_EQ(set("path", false), "expected a path, got false");
  EXPECT_EQ(set("colour", std::int64_t{0}), "expected \"red\", \"green\" or \"blue\", got 0");
}

TEST_F(FieldTest, a_value_out_of_range_is_refused_and_nothing_changes) {
  EXPECT_EQ(set("small", std::int64_t{0}), "expected an integer, 1 to 4096 (groups), got 0");
  EXPECT_EQ(set("small", std::int64_t{1} << 32), "expected an integer, 1 to 4096 (groups), got 4294967296");
  EXPECT_EQ(set("large", std::int64_t{-1}), "expected an integer, at least 0, got -1");
  EXPECT_EQ(set("seed", std::int64_t{-1}), "expected an integer, at least 0, got -1");
  EXPECT_EQ(set("single", 0.0), "expected a number, above 0, at most 1, got 0.0");
  EXPECT_EQ(set("single", 1.0 + 1e-12), "expected a number, above 0, at most 1, got 1.000000000001");
  EXPECT_EQ(set("colour", std::string("pink")), "expected \"red\", \"green\" or \"blue\", got \"pink\" (text)");
  EXPECT_EQ(config_.all.small, 1);
  EXPECT_EQ(config_.all.single, 0.2f);
  EXPECT_EQ(config_.all.colour, Colour::kGreen);
}

TEST_F(FieldTest, not_a_number_and_infinity_are_refused) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(set("number", std::nan("")), "expected a number, got nan");
  EXPECT_EQ(set("number", infinity), "expected a number, got inf");
  EXPECT_EQ(set("number", -infinity), "expected a number, got -inf");
  EXPECT_EQ(set("pause_seconds", infinity), "expected a number, at least 0 (seconds), got inf");
  config_.all.number = infinity;
  EXPECT_EQ(check_value(field("number")).message(), "expected a number, got inf");
  config_.all.single = std::nanf("");
  EXPECT_EQ(check_value(field("single")).message(), "expected a number, above 0, at most 1, got nan");
}

TEST_F(FieldTest, text_must_be_utf8_without_zero_bytes) {
  for (const char* bad : {"\x80", "\xc1\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf0\x80\x80\x80", "\xf4\x90\x80\x80",
                          "\xf5\x80\x80\x80", "\xe2\x82", "a\xff"}) {
    EXPECT_EQ(set("text", std::string(bad)), "expected UTF-8 text, got other bytes") << quoted_text(bad);
    config_.all.text = bad;
    EXPECT_EQ(check_value(field("text")).message(), "expected UTF-8 text, got other bytes");
  }
  for (const char* good : {"", "é", "\xe2\x82\xac", "\xed\x9f\xbf", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(set("text", std::string(good)), "");
  }
  EXPECT_EQ(set("path", std::string("a\0b", 3)), "expected text without a zero byte");
}

TEST_F(FieldTest, values_that_the_program_assigned_are_checked) {
  for (const Field& f : schema_[0].fields) EXPECT_EQ(check_value(f).message(), "") << f.name;
  config_.all.seed = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(check_value(field("seed")).message(), "expected an integer, at least 0, got 18446744073709551615");
  config_.all.small = 5000;
  EXPECT_EQ(check_value(field("small")).message(), "expected an integer, 1 to 4096 (groups), got 5000");
}

TEST_F(FieldTest, text_without_a_type_is_read_as_the_field_needs) {
  EXPECT_EQ(set_text("flag", "true"), "");
  EXPECT_EQ(set_text("flag", "yes"), "expected true or false, got \"yes\"");
  EXPECT_EQ(set_text("small", "12"), "");
  EXPECT_EQ(set_text("small", "12x"), "expected an integer, 1 to 4096 (groups), got \"12x\"");
  EXPECT_EQ(set_text("small", "99999999999999999999"),
            "expected an integer, 1 to 4096 (groups), got \"99999999999999999999\"");
  EXPECT_EQ(set_text("number", "1e-3"), "");
  EXPECT_EQ(config_.all.number, 1e-3);
  EXPECT_EQ(set_text("number", ""), "expected a number, got \"\"");
  EXPECT_EQ(set_text("number", "nan"), "expected a number, got nan");
  EXPECT_EQ(set_text("text", "12"), "");
  EXPECT_EQ(config_.all.text, "12");
  EXPECT_EQ(set_text("colour", "red"), "");
}

TEST_F(FieldTest, the_nearest_key_is_found_by_edit_distance) {
  EXPECT_EQ(nearest_key(schema_, "all.smal"), "all.small");
  EXPECT_EQ(nearest_key(schema_, "everything.color"), "all.colour");
  EXPECT_EQ(nearest_key(schema_, "pause_second"), "all.pause_seconds");
  EXPECT_EQ(nearest_key(schema_, std::string(100000, 'x')), nearest_key(schema_, std::string(128, 'x')));
  EXPECT_EQ(nearest_section(schema_, "al"), "all");
}

TEST(Range, says_what_it_allows) {
  EXPECT_EQ(between(1, 8).text(), "1 to 8");
  EXPECT_EQ(at_least(0).text(), "at least 0");
  EXPECT_EQ(above(0).text(), "above 0");
  EXPECT_EQ(above(0, 1).text(), "above 0, at most 1");
  EXPECT_EQ(Range{}.text(), "");
  EXPECT_EQ((Range{.max = 3}).text(), "at most 3");
}

TEST(QuotedText, escapes_and_shortens) {
  EXPECT_EQ(quoted_text("a\tb"), R"("a\u0009b")");
  EXPECT_EQ(quoted_text(std::string(100, 'a')), '"' + std::string(60, 'a') + "\"...");
}

}  // namespace
}  // namespace flotilla
