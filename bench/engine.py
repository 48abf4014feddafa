"""The engine and llama.cpp at the same work in turns; writes bench/out/engine.json and prints a table."""
import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys

from measure import OUT, machine, packaged_model, write_figures
from peers.random_gguf import write_qwen

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
    def __init__(self, program: pathlib.Path, model: str, threads: int, scratch: pathlib.Path):
        self.program, self.model, self.threads, self.scratch = program, model, threads, scratch

    def measure(self, *arguments) -> dict:
        output_of([self.program, "bench", *arguments, "--model", self.model, "--threads", self.threads, "--repeat", 1, "--json", self.scratch])
        return json.loads(self.scratch.read_text())[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", type=pathlib.Path, required=True, help="folder of llama.cpp's programs")
    parser.add_argument("--ours", type=pathlib.Path, required=True, help="the program flotilla")
    parser.add_argument("--models", nargs="+", choices=["smollm2-135m", "qwen2.5-0.5b"], default=["smollm2-135m", "qwen2.5-0.5b"])
    parser.add_argument("--figures", nargs="+", choices=["prefill", "decode", "rollout"], default=["prefill", "decode", "rollout"])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32, 64], help="sequences that decode together")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()

    OUT.mkdir(parents=True, exist_ok=True)
    figures = []

    def compare(name: str, ours, theirs, goal: float | None) -> None:
        samples = {"ours": [], "llama.cpp": [], "roofline_share": []}
        for number in range(arguments.rounds):
            mine = ours()
            samples["ours"].append(mine["value"])
            samples["roofline_share"].append(mine["roofline_share"])
            samples["llama.cpp"].append(theirs())
            print(f"{name}, round {number + 1}/{arguments.rounds}: ours {samples['ours'][-1]:.1f}, llama.cpp {samples['llama.cpp'][-1]:.1f} "
                  "tokens/s", file=sys.stderr)
        mine, peer = statistics.median(samples["ours"]), statistics.median(samples["llama.cpp"])
        ratio = statistics.median(a / b for a, b in zip(samples["ours"], samples["llama.cpp"]))
        figures.append({"figure": name, "value": mine, "unit": "tokens/s", "against": f"llama.cpp, Q8_0: {peer:.1f} tokens/s", "ratio": ratio,
                        "roofline_share": statistics.median(samples["roofline_share"]), "goal": goal,
                        "met": None if goal is None else ratio >= goal, "samples": samples, "machine": machine(),
                        "command": " ".join(["bench/engine.sh", *sys.argv[5:]]),
                        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")})
        write_figures("engine", figures)

    for model in arguments.models:
        smollm2 = model == "smollm2-135m"
        peer = Peer(arguments.peer, requantised(arguments.peer) if smollm2 else random_qwen(arguments.peer), arguments.threads)
        ours = Ours(arguments.ours, packaged_model() if smollm2 else model, arguments.threads, OUT / "flotilla_bench.json")
        if "prefill" in arguments.figures:
            compare(f"{model}, prefill 512", lambda: ours.measure("prefill", "--tokens", 512), lambda: peer.prefill(512), None)
        for batch in arguments.batch if "decode" in arguments.figures else []:
            compare(f"{model}, decode {batch}", lambda: ours.measure("decode", "--sequences", batch), lambda: peer.decode(batch),
                    0.8 if smollm2 and batch == 32 else None)
        if "rollout" in arguments.figures:
            compare(f"{model}, rollout 8 x 8", lambda: ours.measure("rollout"), peer.rollout, 3)

    print(f"{'figure, ' + str(arguments.threads) + ' threads':34} {'ours':>9} {'of the roofline':>16} {'llama.cpp':>10} {'ratio':>6}")
    for figure in figures:
        print(f"{figure['figure']:34} {figure['value']:9.1f} {100 * figure['roofline_share']:14.0f} % "
              f"{statistics.median(figure['samples']['llama.cpp']):10.1f} {figure['ratio']:6.2f}")
    print("written: bench/out/engine.json")
    return 1 if any(figure["met"] is False for figure in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
