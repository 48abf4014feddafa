"""The engine and llama.cpp at the same work in turns; writes bench/out/engine.json and prints a table."""
import argparse
import contextlib
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys

from measure import OUT, machine, mean_and_error, packaged_model, reaches, write_figures
from peers.random_gguf import write_qwen

TWO_A_CYCLE = 600  # Gop/s of int8 that only a core with two 512-bit dot products a cycle reaches
UNDER_ONE_CACHE = 100  # ns from one thread to another; from cache to cache it is 160
PROMPT = 128
GENERATED = 64


def requantised(peer: pathlib.Path) -> pathlib.Path:
    """The packaged model in llama.cpp's int8 format, as close to ours as it has."""
    target = peer.parent / "smollm2-q8_0.gguf"
    if not target.exists():
        partial = target.with_suffix(".partial")
        subprocess.run([peer / "llama-quantize", "--allow-requantize", packaged_model(), partial, "Q8_0"], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        partial.rename(target)
    return target


def random_qwen(peer: pathlib.Path) -> pathlib.Path:
    target = peer.parent / "qwen2.5-0.5b-random-q8_0.gguf"
    if not target.exists():
        partial = target.with_suffix(".partial")
        write_qwen(partial)
        partial.rename(target)
    return target


def output_of(command: list) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))} failed:\n{done.stderr[-2000:]}")
    return done.stdout


class Peer:
    """Each figure is in tokens a second."""

    def __init__(self, programs: pathlib.Path, model: pathlib.Path, threads: int):
        self.programs, self.model, self.threads = programs, model, threads

    def prefill(self, tokens: int) -> float:
        rows = json.loads(output_of([self.programs / "llama-bench", "-m", self.model, "-t", self.threads, "-p", tokens, "-n", 0, "-r", 1,
                                     "-fa", 1, "-o", "json"]))
        return rows[0]["avg_ts"]

    def decode(self, batch: int) -> float:
        output = output_of([self.programs / "llama-batched-bench", "-m", self.model, "-c", 16384, "-b", 2048, "-ub", 512, "-t", self.threads,
                            "-npp", PROMPT, "-ntg", GENERATED, "-npl", batch, "-pps", "-fa", "on"])
        for line in output.splitlines():
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if len(cells) == 10 and cells[2] == str(batch):
                return float(cells[7])
        raise RuntimeError(f"llama-batched-bench printed no row for {batch} sequences:\n{output}")

    def rollout(self) -> float:
        """The best of several ways to run them: which is fastest differs between machines."""
        ways = [(64, "unified"), (32, "unified"), (64, "streams")]
        return max(float(output_of([self.programs / "llama_rollout", self.model, self.threads, *way]).split()[0]) for way in ways)


class Ours:
    def __init__(self, program: pathlib.Path, model: str, scratch: pathlib.Path):
        self.program, self.model, self.scratch = program, model, scratch

    def measure(self, threads: int, *arguments) -> dict:
        output_of([self.program, "bench", *arguments, "--model", self.model, "--threads", threads, "--repeat", 1, "--json", self.scratch])
        return json.loads(self.scratch.read_text())[0]

    def int8_limit(self, threads: int) -> dict:
        output_of([self.program, "bench", "limits", "--threads", threads, "--json", self.scratch])
        return next(figure for figure in json.loads(self.scratch.read_text()) if figure["figure"].startswith("int8"))

    def int8_peak(self, threads: int) -> float:
        return self.int8_limit(threads)["value"]

    def has_tiles(self) -> bool:
        return self.int8_limit(1)["figure"].endswith("amx")


class Table:
    """Two measurements in turns make a figure: medians, and the median of the rounds' ratios."""

    def __init__(self, rounds: int):
        self.rounds, self.figures = rounds, []

    def add(self, name: str, against: str, ours, other, goal: float | None = None, share: str | None = None,
            share_goal: float | None = None, quiet=None) -> None:
        """`share`: which share of a limit `ours` states; `quiet`: says after a round, given its hand-off, whether it counts. Of rounds
        that may not count there are up to three times as many."""
        samples = {"ours": [], "other": [], "share": [], "handoff_ns": [], "counts": []}
        for number in range(3 * self.rounds):
            if sum(samples["counts"]) == self.rounds:
                break
            mine = ours()
            samples["ours"].append(mine["value"])
            samples["share"].append(mine[share] if share else None)
            samples["handoff_ns"].append(mine["handoff_ns"])
            samples["other"].append(other() if other else None)
            samples["counts"].append(quiet(mine["handoff_ns"]) if quiet else True)
            print(f"{name}, round {number + 1}/{self.rounds}: {mine['value']:.1f}" +
                  (f" beside {samples['other'][-1]:.1f}" if other else "") +
                  (f", threads {mine['handoff_ns']:.0f} ns apart" if mine["handoff_ns"] > 0 else "") +
                  ("" if samples["counts"][-1] else ", does not count"), file=sys.stderr)

        def ratios_of(counting: bool) -> list[float]:
            return [mine / his for mine, his, counts in zip(samples["ours"], samples["other"], samples["counts"]) if counts == counting]

        ratios = ratios_of(True) if other else []
        others = ratios_of(False) if other else []
        ratio = statistics.median(ratios) if ratios else None
        error = mean_and_error(ratios)[1] if ratios else None
        part = statistics.median(samples["share"]) if share else None
        checks = [reaches(ratios, goal)] if ratios and goal is not None else []
        if part is not None and share_goal is not None:
            checks.append(part >= share_goal)
        self.figures.append({
            "figure": name, "value": statistics.median(samples["ours"]), "unit": "tokens/s", "against": against,
            "ratio": ratio, "ratio_error": error, "ratio_of_rounds_that_do_not_count": statistics.median(others) if others else None,
            "other": statistics.median(samples["other"]) if other else None, "goal": goal,
            "share_of": share, "share": part, "share_goal": share_goal, "met": all(checks) if checks else None,
            "samples": samples, "machine": machine(),
            "command": " ".join(["bench/engine.sh", *sys.argv[5:]]),
            "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")})
        write_figures("engine", self.figures)

    def print(self) -> None:
        def number(value, form):
            return "" if value is None else format(value, form)
        print(f"{'figure':44} {'tokens/s':>9} {'share':>6} {'goal':>5}   {'beside':32} {'tokens/s':>9} {'ratio':>6} {'error':>5} "
              f"{'goal':>5}  met")
        for f in self.figures:
            print(f"{f['figure']:44} {f['value']:9.1f} {number(f['share'], '6.2f'):>6} {number(f['share_goal'], '5.2f'):>5}   "
                  f"{f['against']:32} {number(f['other'], '9.1f'):>9} {number(f['ratio'], '6.2f'):>6} "
                  f"{number(f['ratio_error'], '5.2f'):>5} {number(f['goal'], '5.2f'):>5}  "
                  f"{ {True: 'yes', False: 'no', None: ''}[f['met']]}")


@contextlib.contextmanager
def busy_cores():
    """One process on each core that never rests, as another program's."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count())]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


FIGURES = ["rollout", "decode", "prefill", "batch", "scaling", "foreign"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", type=pathlib.Path, required=True, help="folder of llama.cpp's programs")
    parser.add_argument("--ours", type=pathlib.Path, required=True, help="the program flotilla")
    parser.add_argument("--models", nargs="+", choices=["smollm2-135m", "qwen2.5-0.5b"], default=["smollm2-135m", "qwen2.5-0.5b"])
    parser.add_argument("--figures", nargs="+", choices=FIGURES, default=FIGURES)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    threads = arguments.threads

    OUT.mkdir(parents=True, exist_ok=True)
    table = Table(arguments.rounds)
    for model in arguments.models:
        smollm2 = model == "smollm2-135m"
        peer = Peer(arguments.peer, requantised(arguments.peer) if smollm2 else random_qwen(arguments.peer), threads)
        ours = Ours(arguments.ours, packaged_model() if smollm2 else model, OUT / "flotilla_bench.json")
        wanted = arguments.figures if smollm2 else [figure for figure in arguments.figures if figure in ("rollout", "decode", "prefill")]

        def decode(sequences: int, *more, threads=threads) -> dict:
            return ours.measure(threads, "decode", "--sequences", sequences, *more)

        def quiet(handoff_ns: float) -> bool:
            """Whether so many threads multiply as much faster than one, which they don't when the host gives them one core, and had
            one cache: a virtual machine's processors move to two for minutes, and back."""
            return handoff_ns < UNDER_ONE_CACHE and ours.int8_peak(threads) > 0.93 * threads * ours.int8_peak(1)

        if "rollout" in wanted:
            two_a_cycle = ours.int8_peak(1) > TWO_A_CYCLE
            table.add(f"{model}, rollout 8 x 8", "llama.cpp, Q8_0, its best way", lambda: ours.measure(threads, "rollout"), peer.rollout,
                      3 if not two_a_cycle else 5 if smollm2 else 4, "roofline_share",
                      None if two_a_cycle else 0.35)
        # The goals are shares of what dot products of vectors reach. Tiles reach more, but a group's sums leave them one by one.
        tiles = ours.has_tiles()
        if "decode" in wanted:
            table.add(f"{model}, decode 1", "llama.cpp, Q8_0", lambda: decode(1), lambda: peer.decode(1), None, "roofline_share", 0.65)
            table.add(f"{model}, decode 64", "llama.cpp, Q8_0", lambda: decode(64), lambda: peer.decode(64), None, "roofline_share",
                      None if tiles else 0.5)
            if tiles:
                table.add(f"{model}, decode 64, without tiles", "", lambda: decode(64, "--isa", "avx512"), None, None, "roofline_share", 0.5)
        if "prefill" in wanted:
            table.add(f"{model}, prefill 512", "llama.cpp, Q8_0", lambda: ours.measure(threads, "prefill", "--tokens", 512),
                      lambda: peer.prefill(512), None, "int8_share", None if tiles else 0.45)
            if tiles:
                table.add(f"{model}, prefill 512, without tiles", "",
                          lambda: ours.measure(threads, "prefill", "--tokens", 512, "--isa", "avx512"), None, None, "int8_share", 0.45)
        if "batch" in wanted:
            table.add(f"{model}, decode 64", "decode 32", lambda: decode(64), lambda: decode(32)["value"], 1)
            table.add(f"{model}, decode 64, separate prompts", "decode 32, separate prompts", lambda: decode(64, "--separate-prompts"),
                      lambda: decode(32, "--separate-prompts")["value"], 1)
        if "scaling" in wanted:
            table.add(f"{model}, rollout 8 x 8, {threads} threads", "one thread", lambda: ours.measure(threads, "rollout"),
                      lambda: ours.measure(1, "rollout")["value"], 0.9 * threads, quiet=quiet)
            table.add(f"{model}, prefill 512, {threads} threads", "one thread", lambda: ours.measure(threads, "prefill", "--tokens", 512),
                      lambda: ours.measure(1, "prefill", "--tokens", 512)["value"], 0.9 * threads, quiet=quiet)
        if "foreign" in wanted:
            with busy_cores():
                table.add(f"{model}, rollout, a busy process a core", "one thread", lambda: ours.measure(threads, "rollout"),
                          lambda: ours.measure(1, "rollout")["value"], 1)

    table.print()
    print("written: bench/out/engine.json")
    return 1 if any(figure["met"] is False for figure in table.figures) else 0


if __name__ == "__main__":
    sys.exit(main())
