#include "rollout/claim.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include <fmt/format.h>

#include "base/hashing.h"
#include "rollout/group.h"
#include "rollout/worker_counter.h"
#include "sync/signed_json.h"

namespace flotilla {
namespace {

constexpr const char* kKind = "claim";
constexpr int kClaimFormat = 1;

std::uint64_t first_number(Sha256& hash) {
  const Sha256Digest digest = hash.finish();
  std::uint64_t number = 0;
  for (int i = 0; i < 8; ++i) number = (number << 8) | digest.bytes[i];
  return number;
}

// Takes "0000000012" from the front.
std::optional<std::uint64_t> take_number(std::string_view& text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto length = static_cast<std::size_t>(end - text.data());
  if (error != std::errc() || padded(number) != text.substr(0, length)) return std::nullopt;
  text.remove_prefix(length);
  return number;
}

bool take_letter(std::string_view& text, char letter) {
  if (!text.starts_with(letter)) return false;
  text.remove_prefix(1);
  return true;
}

}  // namespace

std::uint64_t TaskOrder::task(std::uint64_t counter) const {
  Sha256 hash;
  hash.update_framed("flotilla epoch");
  hash.update_value(seed);
  hash.update_value(epoch_of(counter));
  return permuted(first_number(hash), counter % tasks, tasks);
}

std::uint64_t TaskOrder::first_block(std::uint64_t epoch, const WorkerId& worker) const {
  Sha256 hash;
  hash.update_framed("flotilla block");
  hash.update_value(seed);
  hash.update_value(epoch);
  hash.update_framed(worker.value());
  return first_number(hash) % blocks();
}

TaskOrder task_order(const RunSpec& spec, std::uint64_t tasks) {
  return {.seed = spec.seed, .tasks = tasks, .block_tasks = static_cast<std::uint64_t>(spec.claims)};
}

std::uint64_t run_task(const RunSpec& spec, const WorkerId& worker, std::uint64_t counter, std::uint64_t tasks) {
  return spec.claims > 0 ? task_order(spec, tasks).task(counter) : assigned_task(spec.seed, worker, counter, tasks);
}

std::string claim_key(const HubLayout& layout, const ClaimId& id) {
  return layout.claims(id.epoch) + padded(id.block) + "." + padded(id.lease);
}

std::string done_key(const HubLayout& layout, const ClaimId& id, const WorkerId& worker) {
  return claim_key(layout, id) + "." + worker.value();
}

std::optional<ClaimName> read_claim_key(const HubLayout& layout, std::string_view key) {
  if (!key.starts_with(layout.claims())) return std::nullopt;
  key.remove_prefix(layout.claims().size());
  const auto epoch = take_number(key);
  if (!epoch || !take_letter(key, '/')) return std::nullopt;
  const auto block = take_number(key);
  if (!block || !take_letter(key, '.')) return std::nullopt;
  const auto lease = take_number(key);
  if (!lease) return std::nullopt;
  ClaimName name{{*epoch, *block, *lease}, std::nullopt};
  if (key.empty()) return name;
  if (!take_letter(key, '.') || key.empty() || key.find('/') != std::string_view::npos) return std::nullopt;
  name.done_by = WorkerId(std::string(key));
  return name;
}

std::string claim_to_json(const std::string& run, const ClaimId& id, const SigningKey& worker) {
  return sign_json(kKind,
                   {{"claim_format", kClaimFormat},
                    {"run", run},
                    {"epoch", id.epoch},
                    {"block", id.block},
                    {"lease", id.lease},
                    {"key", hex(worker.public_key())}},
                   worker);
}

Result<WorkerId> claim_holder(std::string_view text, const std::string& run, const ClaimId& id) {
  if (text.size() > kClaimBytesMax) return data_loss(fmt::format("a claim of {} bytes", text.size()));
  FLOTILLA_ASSIGN_OR_RETURN(const SignedJson document, open_signed_json(text));
  JsonFields fields(document.body);
  const auto bytes = from_hex(fields.text("key", 64));
  PublicKey key;
  if (!bytes.ok() || bytes->size() != key.size()) return data_loss("field key is not a key of 32 bytes in hex");
  std::copy(bytes->begin(), bytes->end(), key.begin());
  FLOTILLA_RETURN_IF_ERROR(check_signed_json(kKind, document, key, "claim_format", kClaimFormat));
  constexpr auto kMax = std::numeric_limits<std::uint64_t>::max();
  fields.number("claim_format", kClaimFormat, kClaimFormat);
  if (fields.text("run", 512) != run) fields.fail("run", "is another one");
  const ClaimId found{fields.number("epoch", 0, kMax), fields.number("block", 0, kMax),
                      fields.number("lease", 0, kMax)};
  FLOTILLA_RETURN_IF_ERROR(fields.finish());
  if (found != id) return data_loss("the claim is not the one that its key names");
  return worker_id(key);
}

}  // namespace flotilla
