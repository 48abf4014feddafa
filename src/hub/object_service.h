#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "hub/admission.h"
#include "hub/body_receiver.h"
#include "hub/limits.h"
#include "hub/multipart.h"
#include "hub/s3_answer.h"
#include "hub/tag_cache.h"
#include "hub/token_store.h"
#include "store/directory_tree.h"

namespace flotilla {

// The operations of S3 on a directory hub, for requests that are admitted. Thread safe; calls wait for the disk.
class ObjectService {
 public:
  // `root` has to exist.
  ObjectService(std::string root, TokenStore& tokens);

  // Bytes of an owner, and of a token, that are held for what is on its way.
  class Held {
   public:
    explicit Held(ObjectService& service) : service_(service) {}
    ~Held();
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    // Within the owner's quota. Both once.
    std::optional<S3Error> of_owner(const std::string& owner, std::uint64_t bytes);
    std::optional<S3Error> of_token(const HubToken& token, std::uint64_t bytes);

   private:
    ObjectService& service_;
    std::string owner_;
    std::string token_;
    std::uint64_t bytes_ = 0;
  };

  // A body on its way. Without finish nothing of it remains.
  class Incoming {
   public:
    // After an error: no more.
    Status take(ByteSpan bytes) { return receiver_->take(bytes); }

   private:
    friend class ObjectService;
    explicit Incoming(ObjectService& service) : held_(service) {}
    Held held_;
    std::variant<std::string, DirectoryTree::Upload, MultipartUploads::Part> target_;
    std::optional<BodyReceiver> receiver_;
  };
  // Before the body: an error here spares it its way. The request must outlive what is returned.
  S3Result<std::unique_ptr<Incoming>> begin(const Admitted& admitted);
  // The whole body was taken.
  S3Result<HubAnswer> finish(const Admitted& admitted, Incoming& incoming);
  // What is wrong with a body, in the words of S3.
  static S3Error body_error(const Status& status);
  // What needs no body.
  S3Result<HubAnswer> answer(const Admitted& admitted);

  // Removes what is too old, and counts what is there. Call it at the start and from time to time; until the first call
  // has ended, owners with a quota are asked to come again.
  Status maintain(std::time_t now);

  // Another one after each change of the object.
  std::string state_of(const std::string& key) const;

  Status health() const { return tree_.open_root().status(); }
  std::map<std::string, std::uint64_t> used_by_owner() const { return owners_.used(); }

 private:
  S3Result<HubAnswer> read(const S3Request& request) const;
  S3Result<HubAnswer> list(const S3Request& request) const;
  S3Result<HubAnswer> remove(const S3Request& request);
  S3Result<HubAnswer> remove_many(const Admitted& admitted, std::string_view body);
  S3Result<HubAnswer> start_upload(const Admitted& admitted);
  S3Result<HubAnswer> complete_upload(const Admitted& admitted, std::string_view body);
  S3Result<HubAnswer> list_parts(const Admitted& admitted) const;
  S3Result<HubAnswer> abort_upload(const Admitted& admitted);
  S3Result<HubAnswer> list_uploads(const Admitted& admitted) const;
  S3Result<HubAnswer> copy(const Admitted& admitted);

  // Gives the upload its name as the request's conditions and the token's rights want it.
  std::optional<S3Error> place(const Admitted& admitted, const DirectoryTree::Upload& upload, std::uint64_t bytes);
  std::optional<S3Error> check_place(const Admitted& admitted) const;
  Status remove_object(const std::string& key);
  void count_written(const std::string& token, std::uint64_t bytes);
  std::uint64_t upload_bytes(const std::string& id) const;

  TokenStore& tokens_;
  const DirectoryTree tree_;
  MultipartUploads uploads_;
  mutable TagCache tags_;
  std::atomic<bool> counted_ = false;  // what owners use is known
  Ledger owners_;
  Ledger writers_;  // what tokens have on their way; what they have written is in the token store
};

}  // namespace flotilla
