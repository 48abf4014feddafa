#include "cli/subject_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files.h"

namespace flotilla {
namespace {

using testing::HasSubstr;

TEST(SubjectAddress, AFileAFolderARunAndAVersionAreToldApart) {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "model@2.gguf").string();
  ASSERT_TRUE(write_file_atomically(file, "GGUF").ok());
  EXPECT_EQ(SubjectAddress::parse(file).value().model, file) << "a file may have an @ in its name";

  const std::string model = (folder.path() / "model").string();
  ASSERT_TRUE(write_file_atomically(model + "/config.json", "{}").ok());
  EXPECT_EQ(SubjectAddress::parse(model).value().model, model);

  const SubjectAddress run = SubjectAddress::parse("/hub/ada/demo").value();
  EXPECT_EQ(run.model, "");
  EXPECT_EQ(run.run.text(), "/hub/ada/demo");
  EXPECT_FALSE(run.version.has_value());

  const SubjectAddress version = SubjectAddress::parse("/hub/ada/demo@12").value();
  EXPECT_EQ(version.run.text(), "/hub/ada/demo");
  EXPECT_EQ(version.version, Version(12));

  const SubjectAddress shared = SubjectAddress::parse("/mnt/me@nas/ada/demo").value();
  const SubjectAddress bucket = SubjectAddress::parse("s3://b-1/ada/demo@12?endpoint=http://h/x").value();
  EXPECT_EQ(bucket.version, Version(12));
  EXPECT_EQ(bucket.run.text(), "s3://b-1/ada/demo?endpoint=http://h/x");
  EXPECT_EQ(shared.run.text(), "/mnt/me@nas/ada/demo") << "a folder may have an @ in its name";
  EXPECT_FALSE(shared.version.has_value());
  EXPECT_EQ(SubjectAddress::parse("/mnt/me@nas/ada/demo@3").value().version, Version(3));
}

TEST(SubjectAddress, WhatIsNoneOfThemIsSaid) {
  EXPECT_THAT(SubjectAddress::parse("missing.gguf").status().message(), HasSubstr("neither a model file"));
  EXPECT_EQ(SubjectAddress::parse("missing.gguf").status().code(), StatusCode::kNotFound)
      << "a failure, not a wrong use: the exit code is that of the learner";
  for (const char* wrong : {"", "a@2"}) {
    EXPECT_THAT(SubjectAddress::parse(wrong).status().message(), HasSubstr("neither a model file")) << wrong;
    EXPECT_EQ(SubjectAddress::parse(wrong).status().code(), StatusCode::kInvalidArgument) << wrong;
  }
  for (const char* wrong : {"/hub/ada/demo@", "/hub/ada/demo@x", "/hub/ada/demo@-1", "/hub/ada/demo@1x"}) {
    EXPECT_THAT(SubjectAddress::parse(wrong).status().message(), HasSubstr("is not a version number")) << wrong;
  }
}

}  // namespace
}  // namespace flotilla
