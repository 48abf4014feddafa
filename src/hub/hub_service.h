#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "hub/admission.h"
#include "hub/hub_metrics.h"
#include "hub/key_watch.h"
#include "hub/object_service.h"

namespace flotilla {

// A hub from an HTTP head to an answer, without the network. Thread safe; calls wait for the disk.
class HubService {
 public:
  HubService(std::string root, TokenStore& tokens, HubMetrics& metrics, const Clock& clock);

  // One request. Used by one thread at a time; the service outlives it.
  class Call {
   public:
    ~Call();
    // The body is to be taken; otherwise the answer is there.
    bool wants_body() const { return incoming_ != nullptr; }
    std::uint64_t body_bytes() const { return admitted_ ? admitted_->request.body.bytes : 0; }
    // False: there is an answer already, and the rest of the body is of no use.
    bool take(ByteSpan bytes);
    // Nothing as long as an object that is waited for is the same: ask again, after a pause. With `last` there is one
    // in any case. Once.
    std::optional<HubAnswer> answer(bool last = false);
    // After no answer: calls `ring` when there may be one, until it goes; what happened before is not told.
    std::unique_ptr<KeyWatch::Waiter> wait(std::function<void()> ring);
    bool may_wait() const;

   private:
    friend class HubService;
    Call(HubService& service, std::string method, std::string target, std::string peer);
    void note(const S3Error& error, const std::string& token);
    HubAnswer refuse(const S3Error& error, const std::string& token);
    HubAnswer dressed(HubAnswer answer);

    HubService& service_;
    const std::string method_;
    const std::string target_;
    const std::string peer_;
    const std::string id_;
    const std::chrono::nanoseconds start_;
    std::optional<Admitted> admitted_;
    std::unique_ptr<ObjectService::Incoming> incoming_;
    std::optional<HubAnswer> early_;
    int status_ = 0;
    bool waiting_ = false;
  };
  // `request`: method and headers, names in lower case. `peer`: whom the log names while no token is known.
  std::unique_ptr<Call> begin(SigV4Request request, std::string target, std::string peer);

  // What the server refuses by itself: requests that do not come to a head or an end, and connections.
  void refused(const std::string& peer, const S3Error& error);
  void connection_refused(const std::string& peer);

  Status maintain(std::time_t now) { return objects_.maintain(now); }
  // Whether the folder is there.
  Status health() const { return objects_.health(); }
  std::string metrics_text() const { return metrics_.text(objects_.used_by_owner()); }

 private:
  void warn(const std::string& who, const std::string& peer, const std::string& what, const S3Error& error);

  HubMetrics& metrics_;
  const Clock& clock_;
  HubAdmission admission_;
  ObjectService objects_;
  KeyWatch watch_;
  QuietLog log_;
};

}  // namespace flotilla
