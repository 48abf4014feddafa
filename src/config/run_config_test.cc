#include "config/run_config.h"

#include <cmath>
#include <cstdlib>
#include <limits>

#include <gtest/gtest.h>

namespace flotilla {
namespace {

std::string parse(std::string_view text) {
  RunConfig config;
  return parse_config(config, text, "run.toml").message();
}

std::string override_with(RunConfig& config, std::vector<std::string> arguments) {
  return override_config(config, arguments).status().message();
}

TEST(RunConfig, the_defaults_are_valid) {
  RunConfig config;
  config.run.name = "alice/first";
  config.run.hub = "/hub";
  config.model.source = "model.gguf";
  EXPECT_EQ(resolve_config(config).message(), "");
  EXPECT_EQ(config.run.folder, ".flotilla/alice/first");
}

TEST(RunConfig, every_key_prints_and_reads_back_equal) {
  RunConfig config;
  config.run.name = "alice/first";
  config.run.hub = "a \"quoted\" \\ hub\n\x7f é";
  config.run.seed = std::numeric_limits<std::int64_t>::max();
  config.rollout.temperature = 0.1f;
  config.learner.mode = LearnerMode::kSequential;
  config.learner.budget = Seconds(0.1 + 0.2);
  config.optimizer.epsilon = std::numeric_limits<double>::denorm_min();
  config.loss.kl = std::numeric_limits<double>::max();
  config.loss.drop_zero_signal = true;
  for (const bool comments : {false, true}) {
    const std::string text = config_toml(config, comments);
    RunConfig again;
    ASSERT_EQ(parse_config(again, text, "again").message(), "");
    EXPECT_EQ(config_toml(again, comments), text);
    EXPECT_EQ(config_json(again), config_json(config));
    EXPECT_EQ(again.run.hub, config.run.hub);
    EXPECT_EQ(again.rollout.temperature, config.rollout.temperature);
    EXPECT_EQ(again.learner.budget, config.learner.budget);
    EXPECT_EQ(again.optimizer.epsilon, config.optimizer.epsilon);
    EXPECT_EQ(again.learner.mode, LearnerMode::kSequential);
  }
}

TEST(RunConfig, json_has_a_section_for_each_table) {
  const nlohmann::json json = config_json(RunConfig{});
  EXPECT_EQ(json["learner"]["batch_groups"], 32);
  EXPECT_EQ(json["learner"]["mode"], "async");
  EXPECT_EQ(json["rollout"]["top_p"], 1.0);
  EXPECT_EQ(json["environment"]["source"], "/usr/share/wordnet");
  RunConfig config;
  config.rollout.top_p = 0.9f;
  EXPECT_EQ(config_json(config)["rollout"]["top_p"].dump(), "0.9");
}

TEST(RunConfig, an_unknown_key_names_its_place_and_the_nearest_key) {
  EXPECT_EQ(parse("[learner]\nbatch_group = 3\n"),
            "run.toml:2:1: unknown key \"learner.batch_group\"; the nearest known key is learner.batch_groups");
  EXPECT_EQ(parse("[loss]\n  learning_rte = 3\n"),
            "run.toml:2:3: unknown key \"loss.learning_rte\"; the nearest known key is warmup.learning_rate");
  EXPECT_EQ(parse("batch_groups = 3\n"),
            "run.toml:1:1: unknown key \"batch_groups\"; the nearest known key is learner.batch_groups");
}

TEST(RunConfig, an_unknown_section_names_the_nearest_one) {
  EXPECT_EQ(parse("\n[lerner]\nsteps = 3\n"),
            "run.toml:2:2: unknown section \"lerner\"; the nearest known section is learner");
}

TEST(RunConfig, a_section_must_be_a_table) {
  EXPECT_EQ(parse("learner = 3\n"), "run.toml:1:11: learner: expected a section ([learner]), got an integer");
  EXPECT_EQ(parse("[[learner]]\nsteps = 1\n"), "run.toml:1:1: learner: expected a section ([learner]), got an array");
}

TEST(RunConfig, wrong_types_and_values_out_of_range_name_their_place) {
  EXPECT_EQ(parse("[learner]\nbatch_groups = 'x'\n"),
            "run.toml:2:16: learner.batch_groups: expected an integer, 1 to 4096 (groups), got \"x\" (text)");
  EXPECT_EQ(parse("[learner]\nbatch_groups = 0\n"),
            "run.toml:2:16: learner.batch_groups: expected an integer, 1 to 4096 (groups), got 0");
  EXPECT_EQ(parse("[learner]\nmode = \"parallel\"\n"),
            "run.toml:2:8: learner.mode: expected \"async\" or \"sequential\", got \"parallel\" (text)");
  EXPECT_EQ(parse("[rollout]\ntemperature = nan\n"),
            "run.toml:2:15: rollout.temperature: expected a number, 0 to 10, got nan");
  EXPECT_EQ(parse("[loss]\nkl = inf\n"), "run.toml:2:6: loss.kl: expected a number, at least 0, got inf");
  EXPECT_EQ(parse("[loss]\nkl = [1]\n"), "run.toml:2:6: loss.kl: expected a number, at least 0, got an array");
  EXPECT_EQ(parse("[loss]\nkl = {a = 1}\n"), "run.toml:2:6: loss.kl: expected a number, at least 0, got a table");
  EXPECT_EQ(parse("[loss]\nkl = 2026-01-01\n"), "run.toml:2:6: loss.kl: expected a number, at least 0, got a date");
  EXPECT_EQ(parse("[loss]\nkl = 12:00:00\n"), "run.toml:2:6: loss.kl: expected a number, at least 0, got a time");
  EXPECT_EQ(parse("[loss]\nkl = 2026-01-01T12:00:00Z\n"),
            "run.toml:2:6: loss.kl: expected a number, at least 0, got a date and time");
}

TEST(RunConfig, text_that_is_not_toml_names_its_place) {
  EXPECT_EQ(parse("[learner\n").substr(0, 13), "run.toml:1:9:");
  EXPECT_EQ(parse("[learner]\nsteps = 1\nsteps = 2\n").substr(0, 11), "run.toml:3:");
  EXPECT_EQ(parse("[.learner]\n").substr(0, 11), "run.toml:1:");
  EXPECT_EQ(parse("\xef\xbb\xb6 = 1\n").substr(0, 11), "run.toml:1:");
  EXPECT_EQ(parse("\xef\xbb\xbf[run]\nseed = 1\n"), "");
  EXPECT_NE(parse("[run]\nhub = \"\xff\"\n"), "");
  EXPECT_NE(parse(std::string(100000, '[')), "");
}

TEST(RunConfig, an_error_leaves_the_config_as_it_was) {
  RunConfig config;
  EXPECT_NE(parse_config(config, "[learner]\nbatch_groups = 7\nsteps = -1\n", "x").message(), "");
  EXPECT_EQ(config.learner.batch_groups, 32);
  EXPECT_NE(override_with(config, {"--learner.batch_groups", "7", "--learner.steps", "x"}), "");
  EXPECT_EQ(config.learner.batch_groups, 32);
}

TEST(RunConfig, the_command_line_overrides_and_keeps_the_other_arguments) {
  RunConfig config;
  const std::vector<std::string> arguments = {"hub/alice/first",
                                              "--learner.steps",
                                              "12",
                                              "--dry-run",
                                              "--loss.kl=0.5",
                                              "--folder=a.b",
                                              "--config",
                                              "x.toml",
                                              "--run.hub=a=b",
                                              "--",
                                              "--loss.kl",
                                              "1"};
  const auto others = override_config(config, arguments);
  ASSERT_TRUE(others.ok()) << others.status().to_string();
  EXPECT_EQ(*others, (std::vector<std::string>{"hub/alice/first", "--dry-run", "--folder=a.b", "--config", "x.toml",
                                               "--loss.kl", "1"}));
  EXPECT_EQ(config.learner.steps, 12);
  EXPECT_EQ(config.loss.kl, 0.5);
  EXPECT_EQ(config.run.hub, "a=b");
}

TEST(RunConfig, a_wrong_override_is_refused) {
  RunConfig config;
  EXPECT_EQ(override_with(config, {"--learner.step", "1"}),
            "unknown option \"--learner.step\"; the nearest known one is --learner.steps");
  EXPECT_EQ(override_with(config, {"--learner.steps"}),
            "--learner.steps: expected an integer, at least 0 (optimizer steps), got no value");
  EXPECT_EQ(override_with(config, {"--learner.steps", "--dry-run"}),
            "--learner.steps: expected an integer, at least 0 (optimizer steps), got no value");
  EXPECT_EQ(override_with(config, {"--learner.steps", "-1"}),
            "--learner.steps: expected an integer, at least 0 (optimizer steps), got -1");
  EXPECT_EQ(override_with(config, {"--loss.drop_zero_signal="}),
            "--loss.drop_zero_signal: expected true or false, got \"\"");
}

TEST(RunConfig, what_a_run_needs_is_asked_for) {
  RunConfig config;
  EXPECT_EQ(resolve_config(config).message(),
            "run.name: expected OWNER/RUN, got nothing; set it in the file or with --run.name");
  config.run.name = "alice/first";
  EXPECT_EQ(resolve_config(config).message(),
            "run.hub: expected the hub's folder, bucket or server, got nothing; set it in the file or with --run.hub");
  config.run.hub = "/hub";
  EXPECT_EQ(resolve_config(config).message(),
            "model.source: expected a GGUF file or a Hugging Face folder, got nothing; set it in the file or with "
            "--model.source");
}

TEST(RunConfig, resolving_checks_values_that_the_program_assigned) {
  RunConfig config;
  config.loss.gate_delta = 2;
  EXPECT_EQ(resolve_config(config).message(),
            "loss.gate_delta: expected a number, above 0, at most 1 (probability), got 2.0");
}

TEST(RunConfig, a_quota_has_room_for_replacements_and_can_be_counted) {
  for (const std::int64_t mib : {0LL, 1LL, 2LL, 1LL << 30, (1LL << 30) + 1}) {
    RunConfig config;
    config.run.name = "alice/first";
    config.run.hub = "/hub";
    config.model.source = "model.gguf";
    config.retention.quota_mib = mib;
    const bool good = mib != 1 && mib <= 1LL << 30;
    EXPECT_EQ(resolve_config(config).ok(), good) << mib;
  }
}

TEST(RunConfig, a_sequential_run_publishes_every_step_and_reuses_nothing) {
  RunConfig config;
  config.run.name = "alice/first";
  config.run.hub = "/hub";
  config.model.source = "model.gguf";
  config.learner.mode = LearnerMode::kSequential;
  ASSERT_EQ(resolve_config(config).message(), "");
  EXPECT_EQ(config.learner.publish_every, 1);
  EXPECT_EQ(config.learner.max_reuse, 1);
  EXPECT_EQ(config.learner.max_staleness, 0);
}

TEST(RunConfig, run_names_are_two_key_parts) {
  EXPECT_TRUE(check_run_name("a/b").ok());
  EXPECT_TRUE(check_run_name("Alice-1/run_2.x").ok());
  for (const char* bad : {"", "a", "/b", "a/", "a/b/c", "../b", "a/.", "a b/c", "a/\xc3\xa9"}) {
    EXPECT_FALSE(check_run_name(bad).ok()) << bad;
  }
  EXPECT_FALSE(check_run_name("a/" + std::string(65, 'b')).ok());
  EXPECT_EQ(check_run_name("a").message(),
            "expected OWNER/RUN, each of 1 to 64 letters, digits, '.', '_' or '-', got \"a\"");
}

TEST(RunConfig, the_demo_is_a_valid_run_with_its_published_values) {
  RunConfig config;
  ASSERT_EQ(load_config(config, "configs/demo.toml").message(), "");
  config.run.hub = "/hub";
  config.model.source = "model.gguf";
  ASSERT_EQ(resolve_config(config).message(), "");
  EXPECT_EQ(config.learner.batch_groups * config.rollout.group_size, 32);
  EXPECT_EQ(config.learner.max_reuse, 1);
  EXPECT_EQ(config.loss.kl, 0);
  EXPECT_EQ(config.learner.budget, Seconds(480));
}

TEST(RunConfig, a_missing_file_is_not_found) {
  RunConfig config;
  EXPECT_EQ(load_config(config, "/no/such/run.toml").code(), StatusCode::kNotFound);
}

TEST(WorkConfig, takes_the_worker_section_only) {
  WorkConfig config;
  const std::vector<std::string> arguments = {"--worker.threads", "2"};
  ASSERT_TRUE(override_config(config, arguments).ok());
  EXPECT_EQ(config.worker.threads, 2);
  EXPECT_TRUE(resolve_config(config).ok());
  const std::vector<std::string> wrong = {"--learner.threads", "2"};
  EXPECT_EQ(override_config(config, wrong).status().message(),
            "unknown option \"--learner.threads\"; the nearest known one is --worker.threads");
}

TEST(WorkConfig, refills_sweeps_of_a_given_number_only) {
  WorkConfig config;
  const std::vector<std::string> arguments = {"--worker.refill", "true"};
  ASSERT_TRUE(override_config(config, arguments).ok());
  EXPECT_EQ(resolve_config(config).message(),
            "worker.refill: expected a number of groups in worker.sweep_groups, which is 0");
  const std::vector<std::string> groups = {"--worker.sweep_groups", "4"};
  ASSERT_TRUE(override_config(config, groups).ok());
  EXPECT_TRUE(resolve_config(config).ok());
}

// FLOTILLA_WRITE_DOCS=1 build/release/bin/config_test writes the page again.
TEST(ConfigurationPage, is_what_the_declarations_say) {
  const std::filesystem::path page = "docs/configuration.md";
  if (std::getenv("FLOTILLA_WRITE_DOCS") != nullptr) {
    ASSERT_TRUE(write_file_atomically(page, configuration_page()).ok());
  }
  const auto text = read_text_file(page);
  ASSERT_TRUE(text.ok()) << text.status().to_string();
  EXPECT_EQ(*text, configuration_page()) << "run with FLOTILLA_WRITE_DOCS=1 to write it again";
}

}  // namespace
}  // namespace flotilla
