#include "base/ids.h"

#include <limits>
#include <type_traits>
#include <unordered_set>

#include <gtest/gtest.h>

namespace flotilla {
namespace {

static_assert(!std::is_convertible_v<std::uint64_t, Version>);
static_assert(!std::is_convertible_v<Version, std::uint64_t>);
static_assert(!std::is_constructible_v<Version, Generation>);
static_assert(!std::is_constructible_v<WorkerId, GroupId>);

TEST(Ids, compare_and_hash_as_their_values) {
  EXPECT_LT(Version(9), Version(10));
  EXPECT_EQ(WorkerId("a"), WorkerId("a"));
  const std::unordered_set<GroupId> groups = {GroupId("a"), GroupId("b"), GroupId("a")};
  EXPECT_EQ(groups.size(), 2u);
}

TEST(Ids, padded_numbers_sort_as_numbers) {
  EXPECT_EQ(padded(12), "0000000012");
  EXPECT_LT(padded(Version(9)), padded(Version(10)));
  EXPECT_EQ(padded(std::numeric_limits<std::uint64_t>::max()), "18446744073709551615");
}

}  // namespace
}  // namespace flotilla
