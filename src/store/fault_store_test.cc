#include "store/fault_store.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

namespace flotilla {
namespace {

TEST(FaultStore, AnErrorDoesNothing) {
  const auto inner = make_memory_store();
  FaultStore store(*inner, {.error = 1}, 1);
  EXPECT_EQ(store.put_if_absent("a", as_bytes("x")).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(inner->get("a").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(store.get("a").status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(store.list("", {}, 10).status().code(), StatusCode::kUnavailable);
}

TEST(FaultStore, ALostAnswerHappensAllTheSame) {
  const auto inner = make_memory_store();
  FaultStore store(*inner, {.lost_answer = 1}, 1);
  EXPECT_EQ(store.put_if_absent("a", as_bytes("x")).status().code(), StatusCode::kUnavailable);
  const auto object = inner->get("a");
  ASSERT_TRUE(object.ok());
  EXPECT_EQ(store.put_if_match("a", as_bytes("y"), object->etag).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(as_text(inner->get("a")->bytes), "y");
  EXPECT_EQ(store.remove("a").code(), StatusCode::kUnavailable);
  EXPECT_EQ(inner->get("a").status().code(), StatusCode::kNotFound);
}

TEST(FaultStore, ATornWriteLeavesAPart) {
  const auto inner = make_memory_store();
  FaultStore store(*inner, {.torn_write = 1}, 1);
  EXPECT_EQ(store.put_if_absent("a", as_bytes("0123456789")).status().code(), StatusCode::kUnavailable);
  const auto object = inner->get("a");
  ASSERT_TRUE(object.ok());
  EXPECT_LT(object->bytes.size(), 10u);
  EXPECT_TRUE(std::string_view("0123456789").starts_with(as_text(object->bytes)));
  EXPECT_TRUE(store.put_if_match("a", as_bytes("whole"), object->etag).ok());
  EXPECT_EQ(as_text(inner->get("a")->bytes), "whole");
}

TEST(FaultStore, ACorruptReadDiffersInOneBit) {
  const auto inner = make_memory_store();
  ASSERT_TRUE(inner->put("a", Bytes(64, 0)).ok());
  FaultStore store(*inner, {.corrupt_read = 1}, 1);
  for (const Bytes& bytes : {store.get("a")->bytes, store.get_range("a", 0, 64).value()}) {
    int bits = 0;
    for (const std::uint8_t byte : bytes) bits += std::popcount(byte);
    EXPECT_EQ(bits, 1);
  }
}

TEST(FaultStore, OneSeedGivesOneSequenceOfFaults) {
  const auto faults = [](std::uint64_t seed) {
    const auto inner = make_memory_store();
    FaultStore store(*inner, {.error = 0.2, .lost_answer = 0.2, .torn_write = 0.2}, seed);
    std::string text;
    for (int i = 0; i < 50; ++i) {
      text += status_code_name(store.put_if_absent(fmt::format("k{}", i), as_bytes("12345678")).status().code());
      text += fmt::format(" {} ", inner->get(fmt::format("k{}", i)).ok());
    }
    return text;
  };
  EXPECT_EQ(faults(5), faults(5));
  EXPECT_NE(faults(5), faults(6));
}

TEST(FaultStore, AfterACrashNothingHappens) {
  for (const CrashPoint point : {CrashPoint::kBefore, CrashPoint::kAfter, CrashPoint::kTorn}) {
    const auto inner = make_memory_store();
    FaultStore store(*inner, {}, 1);
    store.crash_at(1, point);
    ASSERT_TRUE(store.put_if_absent("a", as_bytes("0123456789")).ok());
    EXPECT_FALSE(store.crashed());
    EXPECT_EQ(store.put_if_absent("b", as_bytes("0123456789")).status().code(), StatusCode::kCancelled);
    EXPECT_TRUE(store.crashed());
    EXPECT_EQ(store.put_if_absent("c", as_bytes("0123456789")).status().code(), StatusCode::kCancelled);
    EXPECT_EQ(store.get("a").status().code(), StatusCode::kCancelled);
    EXPECT_EQ(inner->get("b").ok(), point != CrashPoint::kBefore);
    if (point != CrashPoint::kBefore) {
      EXPECT_EQ(inner->get("b")->bytes.size() == 10, point == CrashPoint::kAfter);
    }
    EXPECT_EQ(inner->get("c").status().code(), StatusCode::kNotFound);
    EXPECT_EQ(store.operations(), 4u);
  }
}

TEST(FaultStore, TheHookSeesEachOperationAndMayRefuseIt) {
  const auto inner = make_memory_store();
  std::string seen;
  FaultStore store(*inner, {}, 1, [&](const StoreCall& call) {
    seen += fmt::format("{}:{}:{} ", call.index, call.operation, call.key);
    return call.operation == "put_if_absent" ? resource_exhausted("disk full") : ok_status();
  });
  EXPECT_EQ(store.put_if_absent("a", as_bytes("x")).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(store.get("a").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(seen, "0:put_if_absent:a 1:get:a ");
}

}  // namespace
}  // namespace flotilla
