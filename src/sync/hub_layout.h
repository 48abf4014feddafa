#pragma once

#include <string>

#include "base/hashing.h"
#include "base/ids.h"

namespace flotilla {

// The keys of one run below "<owner>/<run>/" (docs/formats/hub.md).
struct HubLayout {
  std::string prefix;  // "<owner>/<run>"

  std::string run_spec() const { return prefix + "/run.json"; }
  std::string head() const { return prefix + "/head"; }
  std::string artifact(const Sha256Digest& digest) const { return prefix + "/artifacts/" + digest.to_hex(); }
  std::string weights(Version version) const { return prefix + "/weights/" + padded(version); }
  std::string manifest(Version version) const { return weights(version) + "/manifest.json"; }
  std::string delta(Version version) const { return weights(version) + "/delta"; }
  std::string skip(Version version, Version base) const { return weights(version) + "/skip-" + padded(base); }
  std::string anchor(Version version) const { return weights(version) + "/anchor"; }
  std::string rollouts() const { return prefix + "/rollouts/"; }
  // `oldest` is the oldest version that produced a token of the group.
  std::string rollout(Version oldest, const WorkerId& worker, const GroupId& group) const {
    return rollouts() + padded(oldest) + "/" + worker.value() + "/" + group.value();
  }
  std::string events(const std::string& writer, std::uint64_t segment) const {
    return prefix + "/events/" + writer + "/" + padded(segment);
  }
  std::string claims() const { return prefix + "/claims/"; }
  std::string claims(std::uint64_t epoch) const { return claims() + padded(epoch) + "/"; }
  std::string workers() const { return prefix + "/workers/"; }
  std::string weights_folder() const { return prefix + "/weights/"; }
  std::string worker_status(const WorkerId& worker) const { return workers() + worker.value() + "/status"; }
};

}  // namespace flotilla
