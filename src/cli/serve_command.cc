#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/inference_subject.h"
#include "cli/stop_signals.h"
#include "serve/generation_service.h"
#include "serve/http_server.h"
#include "serve/serve_metrics.h"
#include "store/url.h"

namespace flotilla {
namespace {

struct ServeOptions {
  std::string subject;
  std::string name;
  int threads = 0;
  std::int64_t kv_mib = 0;
  std::int64_t time_limit_s = 600;
  std::int64_t grace_s = 30;
  SchedulerLimits limits;
  HttpOptions http;
};

Status serve(const ServeOptions& options) {
  StopSignals signals;
  FLOTILLA_ASSIGN_OR_RETURN(const SubjectAddress address, SubjectAddress::parse(options.subject));
  FLOTILLA_ASSIGN_OR_RETURN(InferenceSubject subject, open_inference_subject(address));
  constexpr std::size_t kFingerprintDigits = 12;
  ServedModel model;
  model.name = options.name.empty() ? subject.name : options.name;
  model.fingerprint =
      fmt::format("arithmetic-{}-{}", kArithmetic,
                  state_digest(subject.description, *subject.weights).to_hex().substr(0, kFingerprintDigits));
  model.tokenizer = subject.tokenizer.get();
  model.vocabulary = subject.description.vocabulary;
  const std::int64_t positions = std::int64_t{options.limits.sequences} * subject.description.context;
  FLOTILLA_ASSIGN_OR_RETURN(const auto engine,
                            make_inference_engine(subject, options.threads, positions, options.kv_mib));
  ServeMetrics metrics;
  GenerationService service(*engine, *subject.tokenizer, options.limits, metrics);
  model.context = service.context();
  HttpOptions http = options.http;
  http.request_timeout = std::chrono::seconds(options.time_limit_s);
  FLOTILLA_ASSIGN_OR_RETURN(const auto server, HttpServer::start(http, model, service, metrics));
  fmt::print("serving {} at http://{}:{}/v1; a request may hold {} tokens, all together {}\n", model.name,
             host_text(http.address), server->port(), model.context, engine->usage().blocks_total * kBlockTokens);
  std::fflush(stdout);

  signals.wait();
  fmt::print("stopping: requests that are being answered have {} s\n", options.grace_s);
  std::fflush(stdout);
  server->stop(std::chrono::seconds(options.grace_s));
  return ok_status();
}

}  // namespace

void add_serve_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "serve", "answer the OpenAI chat and completions API, from any version of a run or a model file");
  auto options = std::make_shared<ServeOptions>();
  command
      ->add_option("SUBJECT", options->subject,
                   "HUB/OWNER/RUN, HUB/OWNER/RUN@VERSION, a .gguf file or a Hugging Face folder")
      ->required();
  command
      ->add_option("--address", options->http.address,
                   "IP address to listen at; one that other machines reach needs --token")
      ->capture_default_str();
  command->add_option("--port", options->http.port, "Port to listen at; 0: any free one")->capture_default_str();
  command->add_option("--token", options->http.token, "What clients send as their API key; empty: nothing is asked for")
      ->envname("FLOTILLA_SERVE_TOKEN");
  command->add_option("--name", options->name,
                      "The model's name in the API; by default the file's, or OWNER/RUN@VERSION");
  command->add_option("--threads", options->threads, "Threads of the engine; 0: one a core")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
  command->add_option("--sequences", options->limits.sequences, "Sequences that are computed together")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  command->add_option("--queue", options->limits.queue, "Requests that may wait; more are told to come again (429)")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  command
      ->add_option("--kv-mib", options->kv_mib,
                   "Memory for keys and values, in MiB; 0: what it takes, or 3/4 of what is free")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 30));
  command->add_option("--time-limit", options->time_limit_s, "Seconds that a request may take, its wait included")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  command->add_option("--grace", options->grace_s, "Seconds that requests have to end after SIGTERM or Ctrl-C")
      ->capture_default_str()
      ->check(CLI::Range(0, 1000000));
  command->footer(
      "Examples:\n"
      "  flotilla serve SmolLM2-135M-Instruct.Q4_1.gguf\n"
      "  flotilla serve out/demo/1/hub/demo/dictionary@12 --name dictionary --port 8081\n"
      "  FLOTILLA_SERVE_TOKEN=secret flotilla serve out/demo/1/hub/demo/dictionary --address 0.0.0.0\n"
      "  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\\n"
      "    -d '{\"model\": \"SmolLM2-135M-Instruct.Q4_1\", \"messages\": [{\"role\": \"user\", \"content\": "
      "\"Hello!\"}]}'\n"
      "docs/serve.md says what is answered and what is refused.");
  command->callback([&action, options] { action = [options] { return serve(*options); }; });
}

}  // namespace flotilla
