#include "cli/run_report.h"

#include <gtest/gtest.h>

#include "rollout/claim.h"

namespace flotilla {
namespace {

TEST(ClaimsReport, TellsHowFarTheNewestEpochIs) {
  const HubLayout layout{"owner/run"};
  std::vector<ObjectInfo> claims;
  EXPECT_EQ(claims_report(layout, claims), "claims: none yet\n");
  const auto claim = [&](const ClaimId& id) { claims.push_back({claim_key(layout, id), 0, {}}); };
  for (const std::uint64_t block : {0, 1, 2, 3}) claim({0, block, 0});
  EXPECT_EQ(claims_report(layout, claims), "claims: epoch 0, 4 blocks claimed, 0 done, 0 taken over\n");
  for (const std::uint64_t block : {1, 3}) claim({1, block, 0});
  claim({1, 3, 1});
  claims.push_back({done_key(layout, {1, 3, 1}, WorkerId("w")), 0, {}});
  claims.push_back({layout.claims() + "junk", 0, {}});
  EXPECT_EQ(claims_report(layout, claims), "claims: epoch 1, 2 of 4 blocks claimed, 1 done, 1 taken over\n");
}

}  // namespace
}  // namespace flotilla
