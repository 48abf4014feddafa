#include "rollout/uploader.h"

#include <fmt/format.h>

#include "base/hashing.h"
#include "base/log.h"

namespace flotilla {

Uploader::Uploader(ObjectStore& store, Options options, EventSink& events, const Clock& clock)
    : store_(store), options_(std::move(options)), events_(events), clock_(clock) {
  thread_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
}

Uploader::~Uploader() {
  thread_.request_stop();
  thread_.join();
}

void Uploader::add(Upload upload) {
  const std::lock_guard lock(mutex_);
  queue_.push_back(std::move(upload));
  changed_.notify_all();
}

void Uploader::set_status(nlohmann::json status) {
  const std::lock_guard lock(mutex_);
  status_object_ = std::move(status);
  changed_.notify_all();
}

std::int64_t Uploader::waiting() const {
  const std::lock_guard lock(mutex_);
  return std::ssize(queue_);
}

std::int64_t Uploader::uploaded() const {
  const std::lock_guard lock(mutex_);
  return uploaded_;
}

Status Uploader::status() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

bool Uploader::wait_until(std::int64_t left, std::chrono::milliseconds time, const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, stop, time, [&] { return std::ssize(queue_) <= left || !failure_.ok(); });
  return std::ssize(queue_) <= left;
}

void Uploader::work(const std::stop_token& stop) {
  const auto has_work = [this] { return !queue_.empty() && failure_.ok(); };
  auto next_status = std::chrono::steady_clock::time_point::min();
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    const auto now = std::chrono::steady_clock::now();
    if (!status_object_.is_null() && now >= next_status) {
      next_status = now + options_.status_interval;
      lock.unlock();
      put_status();
      lock.lock();
    } else if (has_work()) {
      // Only this thread takes uploads out, so the front stays where it is.
      const Upload& front = queue_.front();
      lock.unlock();
      upload(front, stop);
      lock.lock();
    } else if (status_object_.is_null()) {
      changed_.wait(lock, stop, [&] { return has_work() || !status_object_.is_null(); });
    } else {
      changed_.wait_until(lock, stop, next_status, has_work);
    }
  }
}

void Uploader::upload(const Upload& upload, const std::stop_token& stop) {
  int attempts = 0;
  Retrier retrier(options_.retry, options_.seed + xxh3_64(as_bytes(upload.key)), events_, clock_);
  const Status status = retrier.run("put", upload.key, stop, [&]() -> Status {
    ++attempts;
    Status put = store_.put_if_absent(upload.key, upload.bytes).status();
    if (put.code() == StatusCode::kAlreadyExists) return ok_status();
    return put;
  });
  if (status.code() == StatusCode::kCancelled) return;
  if (status.ok()) {
    const auto seconds = std::chrono::duration<double>(clock_.monotonic() - upload.ended).count();
    events_.emit({"worker.upload",
                  {{"group", upload.group.value()},
                   {"bytes", upload.bytes.size()},
                   {"attempts", attempts},
                   {"seconds", seconds}}});
    if (options_.on_upload) options_.on_upload(upload);
  } else {
    log_error("rollout", "upload given up: {}", status.to_string());
  }
  const std::lock_guard lock(mutex_);
  if (status.ok()) {
    ++uploaded_;
    queue_.pop_front();
  } else {
    failure_ = status;
  }
  changed_.notify_all();
}

void Uploader::put_status() {
  nlohmann::json object;
  {
    const std::lock_guard lock(mutex_);
    object = status_object_;
    object["uploaded"] = uploaded_;
    object["queue"] = queue_.size();
  }
  if (options_.complete_status) options_.complete_status(object);
  object["time_ms"] = clock_.wall().count();
  const std::string text = object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  // The next one comes in a minute: no reason to try again.
  if (const auto put = store_.put(options_.status_key, as_bytes(text)); !put.ok()) {
    events_.emit(
        {"hub.error", {{"operation", "put"}, {"key", options_.status_key}, {"message", put.status().to_string()}}});
  }
}

}  // namespace flotilla
