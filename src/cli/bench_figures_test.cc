#include "cli/bench_figures.h"

#include <gtest/gtest.h>

#include "base/files.h"

namespace flotilla {
namespace {

TEST(BoundedFigure, IsWrittenAsAFigureOfTheFiguresFile) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "memory.json";
  const BoundedFigure figure{
      .name = "resident", .value = 300, .unit = "MiB", .goal = 200, .parts = {{"weights", 140}, {"rest", 160}}};
  ASSERT_TRUE(write_figure(figure, path).ok());
  const auto figures = nlohmann::json::parse(read_text_file(path).value());
  ASSERT_EQ(figures.size(), 1u);
  for (const char* field :
       {"figure", "value", "unit", "against", "ratio", "goal", "met", "samples", "machine", "command"}) {
    EXPECT_TRUE(figures[0].contains(field)) << field;
  }
  EXPECT_EQ(figures[0]["ratio"], 1.5);
  EXPECT_EQ(figures[0]["met"], false);
  EXPECT_EQ(figures[0]["parts"]["rest"], 160);
  EXPECT_TRUE(write_figure(figure, "").ok());
}

TEST(MachineName, IsKnownHere) {
  EXPECT_NE(machine_name(), "unknown");
  EXPECT_NE(command_line(), "flotilla bench");
}

}  // namespace
}  // namespace flotilla
