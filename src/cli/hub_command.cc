#include <fmt/format.h>
#include <sys/resource.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/stop_signals.h"
#include "hub/folder_lock.h"
#include "hub/hub_server.h"
#include "hub/hub_service.h"
#include "hub/token_store.h"
#include "store/url.h"

namespace flotilla {
namespace {

namespace fs = std::filesystem;

struct HubOptions {
  std::string folder;
  std::string state;

  // Beside the folder, never in it: the folder may be shared.
  fs::path state_folder() const {
    if (!state.empty()) return state;
    std::string path = fs::absolute(folder).lexically_normal().string();
    while (path.size() > 1 && path.ends_with('/')) path.pop_back();
    return path + ".state";
  }
};

struct HubServeOptions {
  HubOptions hub;
  HubServerOptions server;
  std::string certificate;
  std::string key;
  bool self_signed = false;
  bool make = false;
  std::int64_t grace_s = 30;
};

// A connection takes a handle, and another while an object is on its way. Systems begin with fewer than they allow.
void allow_handles(std::size_t connections) {
  const rlim_t wanted = 2 * connections + 256;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  if (::setrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur == wanted) return;
  log_warning("hub", "the system allows {} open files; {} connections may need {}", limit.rlim_cur, connections,
              wanted);
}

Status serve_hub(const HubServeOptions& options) {
  StopSignals signals;
  allow_handles(options.server.connections_max);
  const fs::path folder = fs::absolute(options.hub.folder).lexically_normal();
  std::error_code error;
  if (options.make) fs::create_directories(folder, error);
  if (!fs::is_directory(folder, error)) {
    return not_found(fmt::format("hub folder '{}' does not exist; --create makes it", folder.string()));
  }
  FLOTILLA_ASSIGN_OR_RETURN(const FileDescriptor lock, lock_hub_folder(folder.string()));
  FLOTILLA_ASSIGN_OR_RETURN(const auto tokens, TokenStore::open(options.hub.state_folder()));
  HubServerOptions server_options = options.server;
  if (options.self_signed) {
    FLOTILLA_ASSIGN_OR_RETURN(server_options.tls, self_signed_certificate(options.hub.state_folder()));
  } else if (!options.certificate.empty()) {
    server_options.tls = TlsFiles{options.certificate, options.key};
  }
  HubMetrics metrics;
  HubService service(folder.string(), *tokens, metrics, system_clock());
  FLOTILLA_ASSIGN_OR_RETURN(const auto server, HubServer::start(server_options, service, metrics));
  fmt::print("hub {} at {}://{}:{}; metrics at http://{}:{}/metrics\n", folder.string(),
             server_options.tls ? "https" : "http", host_text(server_options.address), server->port(),
             host_text(server_options.metrics_address), server->metrics_port());
  if (server_options.tls) {
    FLOTILLA_ASSIGN_OR_RETURN(const std::string pin, public_key_pin(server_options.tls->certificate));
    fmt::print("certificate {}, pin {}\n", server_options.tls->certificate.string(), pin);
  }
  std::fflush(stdout);

  signals.wait();
  fmt::print("stopping: requests that are being answered have {} s\n", options.grace_s);
  std::fflush(stdout);
  server->stop(std::chrono::seconds(options.grace_s));
  return ok_status();
}

struct TokenOptions {
  HubOptions hub;
  HubGrant grant;
  std::string role = "worker";
  std::string id;
  std::uint64_t object_mib = 1024;
  std::uint64_t written_mib = 0;
  double rate = 100;
};

// A folder that is mistyped would get a state folder of its own.
Result<std::unique_ptr<TokenStore>> open_tokens(const HubOptions& options) {
  std::error_code error;
  if (options.state.empty() && !fs::is_directory(options.folder, error)) {
    return not_found(fmt::format("hub folder '{}' does not exist; hub serve --create makes it", options.folder));
  }
  return TokenStore::open(options.state_folder());
}

constexpr int kMibShift = 20;
constexpr int kGibShift = 30;

Status add_token(const TokenOptions& options) {
  HubGrant grant = options.grant;
  FLOTILLA_ASSIGN_OR_RETURN(grant.role, parse_hub_role(options.role));
  FLOTILLA_RETURN_IF_ERROR(check_grant(grant));
  FLOTILLA_ASSIGN_OR_RETURN(const auto tokens, open_tokens(options.hub));
  const TokenLimits limits{.object_bytes_max = options.object_mib << kMibShift,
                           .requests_per_s = options.rate,
                           .written_bytes_max = options.written_mib << kMibShift};
  FLOTILLA_ASSIGN_OR_RETURN(const TokenStore::Issued issued, tokens->add(grant, limits));
  fmt::print("AWS_ACCESS_KEY_ID={}\nAWS_SECRET_ACCESS_KEY={}\n", issued.token.id, issued.secret);
  return ok_status();
}

Status list_tokens(const TokenOptions& options) {
  FLOTILLA_ASSIGN_OR_RETURN(const auto tokens, open_tokens(options.hub));
  FLOTILLA_ASSIGN_OR_RETURN(const auto all, tokens->list());
  fmt::print("{:<20}  {:<8}  {:<24}  {:<32}  {:<20}  {:>12}\n", "token", "role", "scope", "worker", "created",
             "written MiB");
  for (const HubToken& token : all) {
    const std::string created = utc_text(token.created.time_since_epoch()).substr(0, 19) + "Z";
    fmt::print("{:<20}  {:<8}  {:<24}  {:<32}  {:<20}  {:>12.1f}{}\n", token.id, hub_role_name(token.grant.role),
               token.grant.scope, token.grant.worker, created,
               static_cast<double>(token.written_bytes) / (1 << kMibShift), token.revoked ? "  revoked" : "");
  }
  return ok_status();
}

Status revoke_token(const TokenOptions& options) {
  FLOTILLA_ASSIGN_OR_RETURN(const auto tokens, open_tokens(options.hub));
  FLOTILLA_RETURN_IF_ERROR(tokens->revoke(options.id));
  fmt::print("token {} is revoked: its next request is refused\n", options.id);
  return ok_status();
}

struct OwnerOptions {
  HubOptions hub;
  std::string owner;
  std::optional<std::uint64_t> quota_gib;
  std::optional<int> keep_days;
};

Status limit_owner(const OwnerOptions& options) {
  FLOTILLA_ASSIGN_OR_RETURN(const auto tokens, open_tokens(options.hub));
  FLOTILLA_ASSIGN_OR_RETURN(OwnerLimits limits, tokens->owner(options.owner));
  if (options.quota_gib) limits.bytes_max = *options.quota_gib << kGibShift;
  if (options.keep_days) limits.keep_days = *options.keep_days;
  if (options.quota_gib || options.keep_days) FLOTILLA_RETURN_IF_ERROR(tokens->set_owner(options.owner, limits));
  fmt::print("{}: {}; {}\n", options.owner,
             limits.bytes_max > 0 ? fmt::format("at most {} GiB", limits.bytes_max >> kGibShift) : "no quota",
             limits.keep_days > 0 ? fmt::format("groups, events and claims go after {} days", limits.keep_days)
                                  : "nothing is removed");
  return ok_status();
}

void add_hub_options(CLI::App* command, HubOptions& options) {
  command->add_option("FOLDER", options.folder, "The folder that is the hub")->required();
  command->add_option("--state", options.state, "Folder for tokens, keys and certificate; default: FOLDER.state");
}

void add_serve(CLI::App* hub, Action& action) {
  CLI::App* command = hub->add_subcommand("serve", "Serve a folder as a hub: the S3 API over HTTPS, with tokens");
  auto options = std::make_shared<HubServeOptions>();
  HubServerOptions& server = options->server;
  add_hub_options(command, options->hub);
  command->add_flag("--create", options->make, "Make the folder when it is missing");
  command->add_option("--address", server.address, "IP address to listen at; one that other machines reach needs TLS")
      ->capture_default_str();
  command->add_option("--port", server.port, "Port to listen at; 0: any free one")->capture_default_str();
  CLI::Option* certificate =
      command->add_option("--cert", options->certificate, "Certificate with its chain, PEM")->check(CLI::ExistingFile);
  CLI::Option* key = command->add_option("--key", options->key, "Its key, PEM")->check(CLI::ExistingFile);
  certificate->needs(key);
  key->needs(certificate);
  command
      ->add_flag("--self-signed", options->self_signed,
                 "A certificate of its own, made once in the state folder; clients hold it to the pin that is printed")
      ->excludes(certificate);
  command->add_flag("--plain-text", server.plain_text,
                    "Serve other machines without TLS: behind a proxy or a VPN that encrypts");
  command->add_option("--metrics-address", server.metrics_address, "IP address of /health and /metrics, plain text")
      ->capture_default_str();
  command->add_option("--metrics-port", server.metrics_port, "Their port; 0: any free one")->capture_default_str();
  command->add_option("--threads", server.threads, "Threads that wait for the disk and the network")
      ->capture_default_str()
      ->check(CLI::Range(1, 256));
  command->add_option("--connections", server.connections_max, "Connections at a time; more are closed at once")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  command
      ->add_option("--connections-per-address", server.connections_per_peer_max,
                   "Connections at a time of one IP address")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  command->add_option("--grace", options->grace_s, "Seconds that requests have to end after SIGTERM or Ctrl-C")
      ->capture_default_str()
      ->check(CLI::Range(0, 1000000));
  command->footer(
      "Examples:\n"
      "  flotilla hub serve /srv/hub --address 0.0.0.0 --self-signed\n"
      "  flotilla hub serve /srv/hub --address 0.0.0.0 --port 443 --cert fullchain.pem --key privkey.pem\n"
      "  flotilla hub token add /srv/hub ada/demo --worker 3df50384cff00060551dc6f0c5a88cdf\n"
      "docs/hub.md says what is answered and what a token may do.");
  command->callback([&action, options] { action = [options] { return serve_hub(*options); }; });
}

void add_token_commands(CLI::App* hub, Action& action) {
  CLI::App* token = hub->add_subcommand("token", "Make, list and revoke tokens; a hub that runs knows at once");
  token->require_subcommand(1);
  token->footer("Example:\n  flotilla hub token list /srv/hub");
  auto options = std::make_shared<TokenOptions>();

  CLI::App* add = token->add_subcommand("add", "Make a token; its secret is printed once");
  add_hub_options(add, options->hub);
  add->add_option("SCOPE", options->grant.scope, "OWNER/RUN, or OWNER for all runs (not of workers)")->required();
  add->add_option("--role", options->role,
                  "reader; worker: reads, and writes its own groups, events, claims and status; learner: everything")
      ->capture_default_str();
  add->add_option(
      "--worker", options->grant.worker,
      "The worker's id, as flotilla work prints it; without it, the first worker that writes with the token");
  add->add_option("--object-mib", options->object_mib, "Largest object in MiB")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  add->add_option("--rate", options->rate, "Requests a second")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 100000.0));
  add->add_option("--quota-mib", options->written_mib, "MiB that it may write in all; 0: no limit")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 30));
  add->footer(
      "Examples:\n"
      "  flotilla hub token add /srv/hub ada/demo\n"
      "  flotilla hub token add /srv/hub ada/demo --worker 3df50384cff00060551dc6f0c5a88cdf --quota-mib 4096\n"
      "  flotilla hub token add /srv/hub ada --role learner");
  add->callback([&action, options] { action = [options] { return add_token(*options); }; });

  CLI::App* list = token->add_subcommand("list", "List all tokens, without their secrets");
  add_hub_options(list, options->hub);
  list->footer("Example:\n  flotilla hub token list /srv/hub");
  list->callback([&action, options] { action = [options] { return list_tokens(*options); }; });

  CLI::App* revoke = token->add_subcommand("revoke", "Make a token worthless");
  add_hub_options(revoke, options->hub);
  revoke->add_option("TOKEN", options->id, "As token list prints it")->required();
  revoke->footer("Example:\n  flotilla hub token revoke /srv/hub FHABCDEFGHIJKLMNOPQR");
  revoke->callback([&action, options] { action = [options] { return revoke_token(*options); }; });
}

}  // namespace

void add_hub_command(CLI::App& app, Action& action) {
  CLI::App* hub = app.add_subcommand("hub", "Serve a hub to machines that do not share a folder");
  hub->require_subcommand(1);
  hub->footer("Example:\n  flotilla hub serve /srv/hub --address 0.0.0.0 --self-signed");
  add_serve(hub, action);
  add_token_commands(hub, action);

  CLI::App* owner = hub->add_subcommand("owner", "Limit what an owner's runs keep; without a limit, say what they are");
  auto options = std::make_shared<OwnerOptions>();
  add_hub_options(owner, options->hub);
  owner->add_option("OWNER", options->owner, "The first part of OWNER/RUN")->required();
  owner->add_option("--quota-gib", options->quota_gib, "GiB that all its runs may keep; 0: no limit")
      ->check(CLI::Range(0, 1 << 30));
  owner->add_option("--keep-days", options->keep_days, "Days after which groups, events and claims go; 0: never")
      ->check(CLI::Range(0, 36500));
  owner->footer("Example:\n  flotilla hub owner /srv/hub ada --quota-gib 200 --keep-days 14");
  owner->callback([&action, options] { action = [options] { return limit_owner(*options); }; });
}

}  // namespace flotilla
