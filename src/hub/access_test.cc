#include "hub/access.h"

#include <gtest/gtest.h>

namespace flotilla {
namespace {

const HubGrant kWorker{HubRole::kWorker, "ada/demo", "w1"};
const HubGrant kReader{HubRole::kReader, "ada/demo", {}};
const HubGrant kLearner{HubRole::kLearner, "ada/demo", {}};
const HubGrant kOwner{HubRole::kLearner, "ada", {}};

bool may(const HubGrant& grant, HubAction action, std::string_view key) {
  const Status status = check_access(grant, action, key);
  EXPECT_TRUE(status.ok() || status.code() == StatusCode::kPermissionDenied);
  return status.ok();
}

TEST(Access, AWorkerWritesUnderItsOwnPrefixOnly) {
  for (const char* own :
       {"ada/demo/rollouts/0000000001/w1/g", "ada/demo/events/w1/0000000000", "ada/demo/workers/w1/status",
        "ada/demo/claims/0000000003/0000000007.0000000000", "ada/demo/claims/0000000003/0000000007.0000000000.w1"}) {
    EXPECT_TRUE(may(kWorker, HubAction::kWrite, own)) << own;
  }
  for (const char* foreign : {"ada/demo/head",
                              "ada/demo/run.json",
                              "ada/demo/weights/0000000001/delta",
                              "ada/demo/artifacts/00",
                              "ada/demo/rollouts/0000000001/w2/g",
                              "ada/demo/rollouts/0000000001/w1",
                              "ada/demo/rollouts/0000000001/w1/g/x",
                              "ada/demo/rollouts/w1/w2/g",
                              "ada/demo/events/w2/0",
                              "ada/demo/events/learner/0",
                              "ada/demo/workers/w2/status",
                              "ada/demo/workers/w1/other",
                              "ada/demo/claims/3",
                              "ada/demo/claims/0000000003/0000000007.0000000000.w2",
                              "ada/demo/claims/0000000003/0000000007.0000000000.w1.w2",
                              "ada/demo/claims/0000000003/0000000007.0000000000/w1",
                              "ada/demo/claims/0000000003/0000000007.0000000000.",
                              "ada/demo/claims/0000000003/0000000007.00000000000",
                              "ada/demo/claims/0000000003/0000000007.0000000000w1",
                              "ada/demo/claims/0000000003/0000000007.0000000000-w1",
                              "ada/demo/claims/0000000003/0000000007",
                              "ada/demo/claims/0000000003/0000000007-0000000000",
                              "ada/demo/claims/0000000003/0000000007.000000000",
                              "ada/demo/claims/0000000003/0000000007.000000000x",
                              "ada/demo/claims/0000000003/-000000007.0000000000",
                              "ada/demo/claims/0000000003/7.0",
                              "ada/demo/claims/0000000003/7.0.w1",
                              "ada/demo/claims/0000000003/-",
                              "ada/demo/claims/3/0000000007.0000000000",
                              "ada/demo/claims/-000000003/0000000007.0000000000.w1",
                              "ada/other/rollouts/1/w1/g",
                              "ada/demo2/workers/w1/status",
                              "bob/demo/workers/w1/status",
                              "ada/demo",
                              "w1",
                              ""}) {
    EXPECT_FALSE(may(kWorker, HubAction::kWrite, foreign)) << foreign;
  }
  EXPECT_FALSE(may(kWorker, HubAction::kRemove, "ada/demo/workers/w1/status"));
}

TEST(Access, ReadsAreLimitedToTheScope) {
  for (const HubGrant& grant : {kWorker, kReader, kLearner}) {
    EXPECT_TRUE(may(grant, HubAction::kRead, "ada/demo/head"));
    EXPECT_TRUE(may(grant, HubAction::kRead, "ada/demo/rollouts/1/w2/g"));
    EXPECT_TRUE(may(grant, HubAction::kList, "ada/demo/"));
    EXPECT_FALSE(may(grant, HubAction::kRead, "ada/other/head"));
    EXPECT_FALSE(may(grant, HubAction::kList, "ada/demo")) << "would show ada/demo2";
    EXPECT_FALSE(may(grant, HubAction::kList, "ada/"));
  }
  EXPECT_TRUE(may(kOwner, HubAction::kList, "ada/"));
  EXPECT_TRUE(may(kOwner, HubAction::kRemove, "ada/other/head"));
  EXPECT_FALSE(may(kOwner, HubAction::kRead, "adam/other/head"));
  EXPECT_FALSE(may(kReader, HubAction::kWrite, "ada/demo/head"));
  EXPECT_TRUE(may(kLearner, HubAction::kWrite, "ada/demo/head"));
}

TEST(Access, AWorkersObjectsAreWrittenOnceButForItsStatus) {
  EXPECT_TRUE(writes_once(kWorker, "ada/demo/rollouts/0000000001/w1/g"));
  EXPECT_TRUE(writes_once(kWorker, "ada/demo/claims/0000000003/0000000007.0000000000"));
  EXPECT_FALSE(writes_once(kWorker, "ada/demo/workers/w1/status"));
  EXPECT_FALSE(writes_once(kLearner, "ada/demo/head"));
}

TEST(Access, AWorkersTokenWithoutAWorkerIsTheFirstOnesItWritesAs) {
  const HubGrant unbound{HubRole::kWorker, "ada/demo", {}};
  EXPECT_TRUE(may(unbound, HubAction::kWrite, "ada/demo/workers/w1/status"));
  EXPECT_TRUE(may(unbound, HubAction::kWrite, "ada/demo/claims/0000000003/0000000007.0000000000"));
  EXPECT_FALSE(may(unbound, HubAction::kWrite, "ada/demo/head"));
  EXPECT_FALSE(may(unbound, HubAction::kWrite, "ada/demo/events/learner/0")) << "the learner's";
  EXPECT_EQ(worker_of(unbound, "ada/demo/workers/w1/status"), "w1");
  EXPECT_EQ(worker_of(unbound, "ada/demo/events/w2/0"), "w2");
  EXPECT_EQ(worker_of(unbound, "ada/demo/rollouts/0000000001/w3/g"), "w3");
  EXPECT_EQ(worker_of(unbound, "ada/demo/claims/0000000003/0000000007.0000000000"), "");
}

TEST(Access, AGrantNamesARunAndItsWorker) {
  EXPECT_TRUE(check_grant(kWorker).ok());
  EXPECT_TRUE(check_grant(kOwner).ok());
  EXPECT_TRUE(check_grant({HubRole::kWorker, "ada/demo", ""}).ok());
  for (const HubGrant& wrong :
       {HubGrant{HubRole::kWorker, "ada", "w1"}, HubGrant{HubRole::kWorker, "ada/demo", "learner"},
        HubGrant{HubRole::kWorker, "ada/demo", "w/1"}, HubGrant{HubRole::kReader, "ada/demo", "w1"},
        HubGrant{HubRole::kReader, "", ""}, HubGrant{HubRole::kReader, "ada/..", ""},
        HubGrant{HubRole::kReader, "ada/demo/head", ""}}) {
    EXPECT_EQ(check_grant(wrong).code(), StatusCode::kInvalidArgument) << wrong.scope << " " << wrong.worker;
  }
  EXPECT_EQ(parse_hub_role("admin").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(*parse_hub_role("learner"), HubRole::kLearner);
}

}  // namespace
}  // namespace flotilla
