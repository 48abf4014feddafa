#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/files.h"
#include "hub/hub_service.h"

// The hub above its sockets, with requests that a worker or the owner of the folder has signed. A line each: who (w or
// o) and method, target, headers as name:value, an empty line; then the body. Whatever is asked, there is one answer,
// and the folder holds keys of the owner only, of the worker its own.
namespace {

using namespace flotilla;
namespace fs = std::filesystem;

struct Hub {
  Hub() {
    fs::create_directory(root);
    clock.advance(std::chrono::hours(24 * 365 * 50));
    const TokenLimits limits{.object_bytes_max = 1 << 16, .requests_per_s = 1e9};
    const auto add = [&](const HubGrant& grant) {
      const auto issued = tokens->add(grant, limits).value();
      return AwsCredentials{issued.token.id, issued.secret, {}};
    };
    owner = add({HubRole::kLearner, "ada", {}});
    worker = add({HubRole::kWorker, "ada/run", "w"});
  }

  const TemporaryFolder folder;
  const fs::path root = folder.path() / "hub";
  ManualClock clock;
  std::unique_ptr<TokenStore> tokens = TokenStore::open(folder.path() / "state").value();
  HubMetrics metrics;
  std::optional<HubService> service;
  AwsCredentials owner;
  AwsCredentials worker;
};

void check_folder(const Hub& hub, bool by_worker) {
  for (const auto& entry : fs::recursive_directory_iterator(hub.root)) {
    if (!entry.is_regular_file()) continue;
    const std::string key = entry.path().lexically_relative(hub.root).string();
    if (key.starts_with("@store/")) continue;
    FLOTILLA_CHECK(check_key(key).ok() && key.starts_with("ada/"));
    if (by_worker) FLOTILLA_CHECK(key.starts_with("ada/run/"));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Hub& hub = *new Hub;
  std::string_view rest = as_text({data, size});
  const auto line = [&] {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view found = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    return found;
  };
  const std::string_view first = line();
  if (first.empty()) return 0;
  const bool by_worker = first[0] == 'w';
  SigV4Request request{std::string(first.substr(1)), {}, {}, {{"host", "hub"}}};
  const std::string target(line());
  if (!read_request_target(target, request).ok()) return 0;
  for (std::string_view header = line(); !header.empty(); header = line()) {
    const std::size_t colon = std::min(header.find(':'), header.size());
    request.headers.emplace_back(header.substr(0, colon), header.substr(std::min(colon + 1, header.size())));
  }
  hub.clock.advance(std::chrono::seconds(1));
  std::error_code ignored;
  fs::remove_all(hub.root / "ada", ignored);
  fs::remove_all(hub.root / "@store", ignored);
  fs::create_directories(hub.root / "ada" / "run");
  std::ofstream(hub.root / "ada" / "run" / "x") << "0123456789";
  hub.service.emplace(hub.root.string(), *hub.tokens, hub.metrics, hub.clock);
  FLOTILLA_CHECK(hub.service->maintain(0).ok());
  // A signature that a mutation has not broken, and the target as it came: what a client that knows its secret can
  // send.
  const auto time = std::chrono::sys_seconds(std::chrono::floor<std::chrono::seconds>(hub.clock.wall()));
  sign_request(request, by_worker ? hub.worker : hub.owner, {time, "us-east-1"}, kUnsignedPayload);
  const auto call = hub.service->begin(std::move(request), target, "peer");
  while (call->wants_body() && !rest.empty()) {
    const std::string_view piece = rest.substr(0, 100);
    if (!call->take(as_bytes(piece))) break;
    rest.remove_prefix(piece.size());
  }
  const auto answer = call->answer(true);
  FLOTILLA_CHECK(answer && answer->status >= 200 && answer->status < 600 && answer->status != 500);
  if (answer->file) FLOTILLA_CHECK(answer->section.offset + answer->section.count <= answer->file->size);
  check_folder(hub, by_worker);
  return 0;
}
