#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "cli/commands.h"
#include "cli/inference_subject.h"
#include "cli/terminal_text.h"
#include "serve/conversation.h"

namespace flotilla {
namespace {

struct ChatOptions {
  std::string subject;
  std::optional<std::uint64_t> version;
  std::optional<std::int64_t> seed;
  int threads = 0;
  ConversationOptions conversation;
};

volatile std::sig_atomic_t interrupted = 0;

// Ctrl-C ends an answer; at the prompt, where reading is interrupted by it, the program.
void watch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupted = 1; };
  ::sigaction(SIGINT, &action, nullptr);
}

// A line without its end; none at the end of the input.
std::optional<std::string> read_line() {
  char* text = nullptr;
  std::size_t room = 0;
  const auto size = ::getline(&text, &room, stdin);
  const std::unique_ptr<char, decltype(&std::free)> owner(text, &std::free);
  if (size < 0) return std::nullopt;
  std::string line(text, static_cast<std::size_t>(size));
  while (line.ends_with('\n') || line.ends_with('\r')) line.pop_back();
  return line;
}

void print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

// Says one message and prints the answer as it comes: to a file or a pipe as it is.
Status answer(Conversation& conversation, const std::string& message, std::int32_t max_tokens) {
  interrupted = 0;
  const bool terminal = ::isatty(STDOUT_FILENO) != 0;
  TerminalText shown;
  const auto show = [&](std::string_view text) { print(terminal ? shown.push(text) : std::string(text)); };
  FLOTILLA_ASSIGN_OR_RETURN(const Conversation::End end,
                            conversation.say(message, show, [] { return interrupted != 0; }));
  print(shown.finish() + "\n");
  switch (end) {
    case Conversation::End::kTurn: break;
    case Conversation::End::kMaxTokens:
      fmt::print(stderr, "[the answer was cut after {} tokens; --max-tokens allows more]\n", max_tokens);
      break;
    case Conversation::End::kContext:
      fmt::print(stderr, "[the context of {} tokens is full; /reset forgets what was said]\n", conversation.context());
      break;
    case Conversation::End::kStopped: fmt::print(stderr, "[stopped]\n"); break;
  }
  return ok_status();
}

Status talk(Conversation& conversation, std::int32_t max_tokens) {
  for (;;) {
    fmt::print("> ");
    std::fflush(stdout);
    const auto line = read_line();
    if (!line || *line == "/exit") {
      if (!line) fmt::print("\n");
      return ok_status();
    }
    if (*line == "/reset") {
      conversation.reset();
      fmt::print("[forgotten]\n");
    } else if (line->starts_with('/')) {
      fmt::print("[{} is no command; there are /reset and /exit (or Ctrl-D)]\n", *line);
    } else if (!line->empty()) {
      Status status = answer(conversation, *line, max_tokens);
      if (status.code() == StatusCode::kResourceExhausted) {
        fmt::print(stderr, "[{}; /reset forgets what was said]\n", status.message());
      } else if (!status.ok()) {
        return status;
      }
    }
  }
}

Status chat(const ChatOptions& options) {
  FLOTILLA_ASSIGN_OR_RETURN(SubjectAddress address, SubjectAddress::parse(options.subject));
  if (options.version) {
    if (!address.model.empty()) return invalid_argument("--version is for runs; a model file has one only");
    if (address.version) return invalid_argument(fmt::format("both {} and --version name a version", options.subject));
    address.version = Version(*options.version);
  }
  FLOTILLA_ASSIGN_OR_RETURN(InferenceSubject subject, open_inference_subject(address));
  FLOTILLA_ASSIGN_OR_RETURN(const auto engine,
                            make_inference_engine(subject, options.threads, subject.description.context, 0));
  ConversationOptions settings = options.conversation;
  std::random_device random;
  settings.seed = options.seed ? static_cast<std::uint64_t>(*options.seed) : std::uint64_t{random()} << 32 | random();
  Conversation conversation(*engine, *subject.tokenizer, settings);
  if (::isatty(STDIN_FILENO) == 0) {
    const std::string message{std::istreambuf_iterator<char>(std::cin), {}};
    if (message.find_first_not_of(" \t\r\n") == std::string::npos) {
      return invalid_argument("chat: standard input holds no message");
    }
    return answer(conversation, message, settings.max_tokens);
  }
  watch_interrupts();
  fmt::print("{}, {} tokens of context. /reset forgets what was said, Ctrl-C stops an answer, /exit or Ctrl-D ends.\n",
             subject.name, conversation.context());
  return talk(conversation, settings.max_tokens);
}

}  // namespace

void add_chat_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("chat", "talk to any version of a run or a model file");
  auto options = std::make_shared<ChatOptions>();
  ConversationOptions& conversation = options->conversation;
  command
      ->add_option("SUBJECT", options->subject,
                   "HUB/OWNER/RUN, HUB/OWNER/RUN@VERSION, a .gguf file or a Hugging Face folder")
      ->required();
  command->add_option("--version", options->version, "Which version of a run; by default the newest");
  command->add_option("--system", conversation.system, "The system message; by default the model's own");
  command->add_option("--seed", options->seed, "Makes the answers repeatable; by default drawn at random");
  command->add_option("--temperature", conversation.sampling.temperature, "Sampling temperature; 0: most likely token")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 10.0));
  command->add_option("--top-k", conversation.sampling.top_k, "Draw from the K most likely tokens only; 0: from all")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command
      ->add_option("--top-p", conversation.sampling.top_p,
                   "Draw from the likeliest tokens that hold this probability together, in (0, 1]")
      ->capture_default_str();
  command->add_option("--max-tokens", conversation.max_tokens, "Most tokens of one answer")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 24));
  command->add_option("--threads", options->threads, "Threads of the engine; 0: one a core")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
  command->footer(
      "A message that comes from a file or a pipe is answered once.\n"
      "Examples:\n"
      "  flotilla chat SmolLM2-135M-Instruct.Q4_1.gguf\n"
      "  flotilla chat out/demo/1/hub/demo/dictionary --version 12 --temperature 0\n"
      "  echo 'Name three rivers.' | flotilla chat SmolLM2-135M-Instruct.Q4_1.gguf --seed 1");
  command->callback([&action, options] { action = [options] { return chat(*options); }; });
}

}  // namespace flotilla
