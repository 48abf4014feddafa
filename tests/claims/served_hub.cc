#include "served_hub.h"

#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>

#include "base/files.h"
#include "hub/hub_server.h"

namespace flotilla {
namespace {

class Served final : public ServedHub {
 public:
  std::string folder() const override { return root_; }
  std::string address() const override { return fmt::format("http://127.0.0.1:{}", server_->port()); }
  void be_worker(const std::string& run, const std::string& worker) override {
    const auto issued = tokens_->add({HubRole::kWorker, run, worker}, {.requests_per_s = 1e6}).value();
    ::setenv("AWS_ACCESS_KEY_ID", issued.token.id.c_str(), 1);
    ::setenv("AWS_SECRET_ACCESS_KEY", issued.secret.c_str(), 1);
  }

 private:
  static HubServerOptions options() {
    HubServerOptions options;
    options.port = options.metrics_port = 0;
    options.threads = 4;
    return options;
  }

  TemporaryFolder folder_;
  const std::string root_ = (folder_.path() / "hub").string();
  const bool made_ = std::filesystem::create_directory(root_);
  std::unique_ptr<TokenStore> tokens_ = TokenStore::open(folder_.path() / "state").value();
  HubMetrics metrics_;
  HubService service_{root_, *tokens_, metrics_, system_clock()};
  std::unique_ptr<HubServer> server_ = HubServer::start(options(), service_, metrics_).value();
};

}  // namespace

std::unique_ptr<ServedHub> ServedHub::start() { return std::make_unique<Served>(); }

}  // namespace flotilla
