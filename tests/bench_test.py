"""bench/measure.py: when a figure's goal is met."""
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import measure  # noqa: E402


class Goals(unittest.TestCase):
    def test_not_slower_is_met_within_the_noise_of_the_rounds(self):
        self.assertTrue(measure.reaches([0.97, 0.98, 0.99, 1.02, 1.0], 1))
        self.assertFalse(measure.reaches([0.97, 0.98, 0.98, 0.97, 0.98], 1))

    def test_noise_alone_does_not_meet_it(self):
        self.assertFalse(measure.reaches([0.6, 0.7, 0.8, 1.3, 1.4], 1))

    def test_the_error_is_that_of_the_mean(self):
        self.assertFalse(measure.reaches([1.0] * 11 + [0.8] * 9, 1), "whose mean is 0.91 +- 0.02")

    def test_other_goals_are_those_of_the_median(self):
        self.assertTrue(measure.reaches([1.0, 3.1, 3.2], 3))
        self.assertFalse(measure.reaches([2.9, 2.9, 9.0], 3))


if __name__ == "__main__":
    unittest.main()
