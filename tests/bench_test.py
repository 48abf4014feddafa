"""bench/measure.py: when a figure's goal is met; bench/sync.py: what is made of the program's figures."""
import lzma
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import measure  # noqa: E402
import sync  # noqa: E402


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


class Deltas(unittest.TestCase):
    ENTRY = {"value": 1020, "bound_bytes": 1000, "changed": 700, "total": 2_000_000, "encode_peak_bytes": 50, "apply_peak_bytes": 90,
             "largest_tensor_bytes": 30}

    def delta(self, name: str, encode: list[float], apply: list[float], **more) -> sync.Delta:
        with tempfile.NamedTemporaryFile() as gaps:
            gaps.write(bytes(1000))
            gaps.flush()
            speeds = [{"threads": 1, "encode_seconds": encode, "apply_seconds": apply}]
            return sync.Delta({**self.ENTRY, "figure": name, "speeds": speeds, **more}, pathlib.Path(gaps.name))

    def test_size_is_that_of_the_bound_and_memory_the_worse_of_both_sides(self):
        delta = self.delta("1 % at random", [1], [1])
        self.assertEqual(delta.ratio, 1.02)
        self.assertEqual(delta.memory, 3)
        self.assertEqual(delta.entry["gaps_xz"]["bytes"], len(lzma.compress(bytes(1000), preset=9 | lzma.PRESET_EXTREME)))

    def test_speeds_are_the_medians_of_all_weights_a_second(self):
        figures = sync.Figures()
        figures.add_random([self.delta("10 % at random", [0.01, 0.02, 0.04], [0.005, 0.02, 0.02])], 1)
        size, encode, apply = figures.figures
        self.assertTrue(size["met"])
        self.assertEqual((encode["value"], encode["goal"], encode["met"]), (100, 100, True))
        self.assertEqual((apply["value"], apply["goal"], apply["met"]), (100, 200, False))

    def test_a_run_is_as_good_as_its_worst_version(self):
        figures = sync.Figures()
        figures.add_run([self.delta("version 5", [1], [1], value=value) for value in (900, 940, 951)], "2e-5")
        self.assertEqual((figures.figures[0]["ratio"], figures.figures[0]["ratio_median"]), (0.951, 0.94))
        self.assertFalse(figures.figures[0]["met"])


if __name__ == "__main__":
    unittest.main()
