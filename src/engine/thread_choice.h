#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace flotilla {

// How many threads a forward pass takes, found out by measuring passes: one core may fill the memory already when a
// single sequence decodes, and other programs may want the cores. Passes of like numbers of rows are judged together;
// each settles on the number that was fastest and tries its neighbours from time to time. Pure: times are arguments.
class ThreadChoice {
 public:
  // `most` >= 1: threads that there are.
  explicit ThreadChoice(int most);

  // For the next pass, of `rows` >= 1 rows.
  int threads(std::int64_t rows) const;
  // A pass of so many rows with threads(rows) threads is over. `cost`: its seconds by its work, in any one unit.
  void add(std::int64_t rows, double cost);

 private:
  static constexpr int kSamples = 3;
  struct Candidate {
    int threads = 1;
    std::array<double, kSamples> costs{};  // of the last passes
    int passes = 0;                        // since it was last taken up
    double cost() const;                   // their median
  };
  struct Bucket {
    std::vector<Candidate> candidates;  // 1, 2, 4, ... and `most`
    std::size_t best = 0;
    std::size_t current = 0;
    std::size_t next_trial = 0;  // candidate to compare with the best next
    int until_trial = 0;         // passes with the best before that
  };
  static constexpr std::size_t kBuckets = 9;  // rows up to 1, 3, 7, 15, ... and more
  static std::size_t bucket_of(std::int64_t rows);
  static void plan_trial(Bucket& bucket, int passes);

  std::array<Bucket, kBuckets> buckets_;
};

}  // namespace flotilla
