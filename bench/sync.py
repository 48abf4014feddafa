"""Deltas of the weights: bytes, speed and memory; writes bench/out/sync.json and prints a table.

Changes at random on the sizes of SmolLM2, and the versions of a finished run, which are encoded again one after the other.
The bound is n H(p) and a bit a change, with each delta's own p. Beside it: plain gap coding under zstd -19 and xz -9e, and
the XOR of both versions under zstd -3, of the same states.
"""
import argparse
import datetime
import json
import lzma
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from measure import machine, write_figures

RANDOM_GOAL = 1.03  # of the bound
RUN_GOAL, RUN_AIM = 0.95, 0.90
RUN_VERSIONS = range(5, 51)
SPEED_GOALS = {"0.5 % at random": (400, 1000), "10 % at random": (100, 200)}  # MB of weights a second and core: encode, apply
MEMORY_GOAL = 3  # largest tensors, besides the weights


class Delta:
    """What the program measured of one delta; xz is measured here."""

    def __init__(self, entry: dict, gaps: pathlib.Path):
        self.entry, self.name = entry, entry["figure"]
        begin = time.monotonic()
        entry["gaps_xz"] = {"preset": "9e", "bytes": len(lzma.compress(gaps.read_bytes(), preset=9 | lzma.PRESET_EXTREME)),
                            "seconds": time.monotonic() - begin}

    def of_bound(self, size: float) -> float:
        return size / self.entry["bound_bytes"]

    @property
    def ratio(self) -> float:
        return self.of_bound(self.entry["value"])

    def speeds(self, direction: str, threads: int) -> list[float] | None:
        for speed in self.entry["speeds"]:
            if speed["threads"] == threads:
                return [self.entry["total"] / seconds / 1e6 for seconds in speed[f"{direction}_seconds"]]
        return None

    @property
    def memory(self) -> float:
        return max(self.entry["encode_peak_bytes"], self.entry["apply_peak_bytes"]) / self.entry["largest_tensor_bytes"]


def measure(program: pathlib.Path, *arguments) -> list[Delta]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        command = [program, "bench", "sync", *arguments, "--gaps", folder, "--json", folder / "deltas.json"]
        subprocess.run([str(part) for part in command], check=True, stdout=sys.stderr)
        deltas = []
        for number, entry in enumerate(json.loads((folder / "deltas.json").read_text())):
            if entry["changed"] == 0:
                continue  # a version that is the one before it
            print(f"xz: {entry['figure']}", file=sys.stderr)
            deltas.append(Delta(entry, folder / f"{number}.gaps"))
        return deltas


def print_table(deltas: list[Delta], threads: int) -> None:
    print(f"{'':16} {'changed':>8} {'bytes':>9} {'bits a':>6} {'of the':>6} {'int8':>6} {'bf16':>6} |{'of the bound, gaps':^21}{'XOR':>6} |"
          f"{'MB/s, a core':^13}|{f'{threads} threads':^13}|{'largest':>8}")
    print(f"{'':16} {'%':>8} {'':>9} {'change':>6} {'bound':>6} {'/':>6} {'/':>6} |{'plain':>7}{'zstd':>7}{'xz':>7}{'zstd':>6} |"
          f"{'encode':>6}{'apply':>6} |{'encode':>6}{'apply':>6} |{'tensors':>8}")
    for delta in deltas:
        e = delta.entry
        others = [delta.of_bound(size) for size in (e["gaps_bytes"], e["gaps_zstd"]["bytes"], e["gaps_xz"]["bytes"], e["xor_zstd"]["bytes"])]
        alone = [statistics.median(delta.speeds(direction, 1)) for direction in ("encode", "apply")]
        several = [delta.speeds(direction, threads) for direction in ("encode", "apply")] if threads > 1 else [None, None]
        gains = [f"{statistics.median(more) / one:.2f} x" if more else "" for more, one in zip(several, alone)]
        print(f"{delta.name:16} {100 * e['changed'] / e['total']:8.3f} {e['value']:9} {8 * e['value'] / e['changed']:6.2f} {delta.ratio:6.3f} "
              f"{e['int8_bytes'] / e['value']:6.0f} {e['bf16_bytes'] / e['value']:6.0f} |{others[0]:7.3f}{others[1]:7.3f}{others[2]:7.3f}"
              f"{others[3]:6.2f} |{alone[0]:6.0f}{alone[1]:6.0f} |{gains[0]:>6}{gains[1]:>6} |{delta.memory:8.2f}")


class Figures:
    def __init__(self):
        self.figures = []

    def add(self, name: str, value: float, unit: str, against: str, ratio: float, goal: float, met: bool, samples: list, **more) -> None:
        self.figures.append({"figure": name, "value": value, "unit": unit, "against": against, "ratio": ratio, "goal": goal, "met": met,
                             "samples": samples, **more, "machine": machine(), "command": " ".join(["bench/sync.sh", *sys.argv[3:]]),
                             "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")})

    def add_random(self, deltas: list[Delta], threads: int) -> None:
        for delta in deltas:
            self.add(f"delta, {delta.name}", delta.entry["value"], "bytes", "n H(p) and a bit a change", delta.ratio, RANDOM_GOAL,
                     delta.ratio <= RANDOM_GOAL, [delta.entry["value"]], measured=delta.entry)
            for direction, goal in zip(("encode", "apply"), SPEED_GOALS.get(delta.name, ())):
                samples, several = delta.speeds(direction, 1), delta.speeds(direction, threads)
                speed = statistics.median(samples)
                self.add(f"{direction}, {delta.name}", speed, "MB of weights a second and core", "the goal", speed / goal, goal, speed >= goal,
                         samples, threads=threads, gain_of_threads=statistics.median(several) / speed)

    def add_run(self, deltas: list[Delta], learning_rate: str | None) -> None:
        ratios = [delta.ratio for delta in deltas]
        self.add(f"delta, versions {RUN_VERSIONS[0]} to {RUN_VERSIONS[-1]} of a run", statistics.median(d.entry["value"] for d in deltas), "bytes",
                 "n H(p) and a bit a change, the worst", max(ratios), RUN_GOAL, max(ratios) <= RUN_GOAL, ratios,
                 ratio_median=statistics.median(ratios), aim=RUN_AIM, aim_met=max(ratios) <= RUN_AIM, learning_rate=learning_rate,
                 measured=[delta.entry for delta in deltas])

    def add_memory(self, deltas: list[Delta]) -> None:
        memory = [delta.memory for delta in deltas]
        self.add("memory besides the weights", max(memory), "largest tensors", "the goal", max(memory) / MEMORY_GOAL, MEMORY_GOAL,
                 max(memory) <= MEMORY_GOAL, memory)

    def print(self) -> None:
        for figure in self.figures:
            value = f"{figure['ratio']:.3f} of the bound" if figure["unit"] == "bytes" else f"{figure['value']:.3g} {figure['unit']}"
            print(f"{figure['figure']:38} {value:40} goal {figure['goal']:<5} {'met' if figure['met'] else 'NOT MET'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", type=pathlib.Path, required=True, help="the program flotilla")
    parser.add_argument("run", nargs="?", help="HUB/OWNER/RUN of a finished run")
    parser.add_argument("--learning-rate", help="the run's, to be stated with its figures: its hub does not have it")
    parser.add_argument("--model", default="smollm2-135m", help="as for `flotilla bench sync`")
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    threads = os.cpu_count()

    random = measure(arguments.ours, "--model", arguments.model, "--repeat", arguments.repeat, "--threads",
                     ",".join(str(count) for count in sorted({1, threads})))
    versions = measure(arguments.ours, arguments.run, "--repeat", 1) if arguments.run else []
    counted = [delta for delta in versions if int(delta.name.split()[1]) in RUN_VERSIONS]

    figures = Figures()
    figures.add_random(random, threads)
    if counted:
        figures.add_run(counted, arguments.learning_rate)
    figures.add_memory(random + versions)
    print_table(random, threads)
    if versions:
        print(f"\n{arguments.run}, learning rate {arguments.learning_rate or 'not stated'}:")
        print_table(versions, 1)
        if counted:
            ratios = [delta.ratio for delta in counted]
            sizes = [sum(delta.entry[field] for delta in counted) for field in ("value", "bound_bytes")]
            print(f"versions {RUN_VERSIONS[0]} to {RUN_VERSIONS[-1]}: of the bound {statistics.median(ratios):.3f} (median), {min(ratios):.3f} to "
                  f"{max(ratios):.3f}, {sizes[0] / sizes[1]:.3f} in all")
    print()
    figures.print()
    print(f"written: {write_figures('sync', figures.figures)}")
    return 0 if all(figure["met"] for figure in figures.figures) else 1


if __name__ == "__main__":
    sys.exit(main())
