#include "sync/head_writer.h"

#include <algorithm>
#include <random>

#include <fmt/format.h>

#include "sync/store_access.h"

namespace flotilla {
namespace {

// An older learner may write `wanted` between our reading and writing; it cannot do so often.
constexpr int kRefusals = 20;

std::string draw_writer() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

}  // namespace

HeadWriter::HeadWriter(ObjectStore& store, HubLayout layout, std::shared_ptr<const SigningKey> key)
    : store_(&store), layout_(std::move(layout)), key_(std::move(key)), writer_(draw_writer()) {}

Result<HeadWriter> HeadWriter::take_over(ObjectStore& store, const HubLayout& layout,
                                         std::shared_ptr<const SigningKey> key) {
  HeadWriter writer(store, layout, std::move(key));
  FLOTILLA_RETURN_IF_ERROR(writer.confirm());
  if (writer.head_) FLOTILLA_RETURN_IF_ERROR(writer.write({}));
  writer.taking_over_ = false;
  return writer;
}

Status HeadWriter::read_once() {
  const auto object = store_->get(layout_.head());
  if (object.status().code() == StatusCode::kNotFound) {
    if (head_) return data_loss(fmt::format("'{}' has vanished from the hub", layout_.head()));
    return ok_status();
  }
  if (!object.ok()) return object.status();
  const std::string_view text = as_text(object->bytes);
  if (head_ && text == text_) {
    etag_ = object->etag;
    return ok_status();
  }
  const auto ours =
      std::ranges::find(uncertain_, text, [](const auto& write) -> std::string_view { return write.first; });
  Head found;
  if (ours != uncertain_.end()) {
    found = ours->second;
    uncertain_.clear();  // each was conditional on a head before this one
  } else {
    FLOTILLA_ASSIGN_OR_RETURN(found, head_from_json(text, key_->public_key()).with_context(layout_.head()));
    if (found.run != layout_.prefix) {
      return failed_precondition(
          fmt::format("'{}' belongs to the run '{}': the hub holds another run here", layout_.head(), found.run));
    }
    const bool older = !head_ || found.generation < generation_;
    if (!taking_over_ || !older) {
      lost_ =
          failed_precondition(fmt::format("another learner has taken over run '{}' (generation {} after our {}): this "
                                          "learner must stop",
                                          found.run, found.generation.value(), generation_.value()));
      return lost_;
    }
    generation_ = Generation(found.generation.value() + 1);
  }
  head_ = std::move(found);
  text_ = std::string(text);
  etag_ = object->etag;
  return ok_status();
}

Status HeadWriter::confirm() {
  FLOTILLA_RETURN_IF_ERROR(lost_);
  Status status;
  for (int attempt = 0; attempt < kStoreAttempts; ++attempt) {
    status = read_once();
    // A head that arrives damaged is worth another reading; one that stays so is an error.
    const bool damaged = status.code() == StatusCode::kDataLoss || status.code() == StatusCode::kPermissionDenied;
    if (status.ok() || (!may_pass(status) && !damaged)) break;
  }
  return status;
}

Status HeadWriter::write(const HeadChange& change) {
  FLOTILLA_RETURN_IF_ERROR(lost_);
  Status status;
  int refusals = 0;
  for (int attempt = 0; attempt < kStoreAttempts;) {
    FLOTILLA_CHECK(head_ || change.version);
    Head next = head_.value_or(Head{});
    next.run = layout_.prefix;
    next.generation = generation_;
    next.writer = writer_;
    ++next.sequence;
    if (change.version) {
      next.version = change.version->version;
      next.manifest = change.version->manifest;
    }
    next.state = change.state.value_or(next.state);
    next.wanted = change.wanted.value_or(next.wanted);
    const std::string text = head_to_json(next, *key_);

    const auto etag = head_ ? store_->put_if_match(layout_.head(), as_bytes(text), etag_)
                            : store_->put_if_absent(layout_.head(), as_bytes(text));
    if (etag.ok()) {
      head_ = next;
      text_ = text;
      etag_ = *etag;
      uncertain_.clear();
      return ok_status();
    }
    status = etag.status().with_context(layout_.head());
    if (may_pass(status)) {
      uncertain_.emplace_back(text, next);
      ++attempt;
    } else if (status.code() != StatusCode::kFailedPrecondition && status.code() != StatusCode::kAlreadyExists) {
      return status;
    } else if (++refusals == kRefusals) {
      attempt = kStoreAttempts;
    }
    // Refused, or no answer: what is there decides. Our own earlier write may be why this one was refused.
    if (Status read = confirm(); !read.ok()) {
      if (!may_pass(read)) return read;
      status = read;
      ++attempt;
    } else if (text_ == text) {
      return ok_status();
    }
  }
  return may_pass(status) ? status : unavailable(status.message());
}

}  // namespace flotilla
