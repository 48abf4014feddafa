"""What a sweep's size and shared prefixes are worth; writes bench/out/sweep.json and prints a table and a plot.

The same questions with the same random numbers are answered in sweeps of 8 to 128 episodes, with what prompts share
computed once ("shared") and with each episode's prompt computed by itself ("alone"), on disjoint sets of questions. The
arithmetic is exact: each way has to give the same episodes, so pass@1 and turns may not differ at all.
"""
import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from measure import machine, mean_and_error, packaged_model, write_figures

AT_PEAK = 0.97  # of the highest rate: less is noise (OperatingPoint)


class Way:
    """A size of the sweep, with or without shared prefixes, and its evaluations, one a set of questions."""

    def __init__(self, batch: int, shared: bool):
        self.batch, self.shared = batch, shared
        self.name = f"sweep of {batch}, prompts {'shared' if shared else 'alone'}"
        self.evaluations: list[dict] = []

    def samples(self, of) -> list[float]:
        return [of(evaluation) for evaluation in self.evaluations]


def episodes_an_hour(evaluation: dict) -> float:
    return 3600 * evaluation["questions"] * evaluation["samples"] / evaluation["seconds"]


def tokens_a_second(evaluation: dict) -> float:
    return evaluation["model_tokens"] / evaluation["seconds"]


def seconds_a_sweep(evaluation: dict) -> float:
    return evaluation["seconds"] / evaluation["sweeps"]


def prefilled(evaluation: dict) -> float:
    return evaluation["prompt_tokens"] + evaluation["environment_tokens"]


def pooled(way: Way, field: str, divisor: int = 1) -> tuple[float, float]:
    """Mean over the questions of all sets, with its standard error."""
    return mean_and_error([question[field] / divisor for evaluation in way.evaluations for question in evaluation["by_question"]])


def differences(ways: list[Way]) -> list[str]:
    """Where a way's episodes are not those of the first one."""
    found = []
    for way in ways[1:]:
        for number, (mine, first) in enumerate(zip(way.evaluations, ways[0].evaluations)):
            if mine["by_question"] != first["by_question"] or mine["model_tokens"] != first["model_tokens"]:
                found.append(f"{way.name}, set {number + 1}")
    return found


def within_two_errors(ways: list[Way], field: str, divisor: int) -> bool:
    value, error = pooled(ways[0], field, divisor)
    return all(abs(pooled(way, field, divisor)[0] - value) <= 2 * error for way in ways)


def plot(ways: list[Way]) -> str:
    """Episodes an hour over the size of the sweep, as bars."""
    rates = {way: statistics.fmean(way.samples(episodes_an_hour)) for way in ways}
    most = max(rates.values())
    return "\n".join(f"{way.batch:>4} {'shared' if way.shared else 'alone ':6} {'#' * round(60 * rate / most):60} {rate:9.0f}"
                     for way, rate in rates.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subject", nargs="?", help="a model file or HUB/OWNER/RUN@VERSION (default: the packaged SmolLM2-135M)")
    parser.add_argument("--ours", type=pathlib.Path, required=True, help="the program flotilla")
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 16, 32, 64, 128], help="episodes decoded together")
    parser.add_argument("--samples", type=int, default=8, help="episodes a question: a group")
    parser.add_argument("--questions", type=int, default=16, help="questions in a set; whole sweeps of the largest batch")
    parser.add_argument("--sets", type=int, default=3, help="disjoint sets of questions")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="two sets of two questions, sweeps of 4 and 8: does it work?")
    arguments = parser.parse_args()
    if arguments.short:
        arguments.batches, arguments.samples, arguments.questions, arguments.sets = [4, 8], 4, 2, 2
    for batch in arguments.batches:
        if batch < 1 or batch % arguments.samples or arguments.questions * arguments.samples % batch:
            parser.error(f"--batches {batch}: expected a multiple of {arguments.samples} samples that divides "
                         f"{arguments.questions} questions x {arguments.samples} samples")
    subject = arguments.subject or str(packaged_model())

    ways = [Way(batch, shared) for batch in arguments.batches for shared in (True, False)]

    def evaluate(way: Way, number: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            result = pathlib.Path(folder) / "evaluation.json"
            command = [arguments.ours, "eval", subject, "--questions", arguments.questions, "--skip", number * arguments.questions,
                       "--samples", arguments.samples, "--questions-per-sweep", way.batch // arguments.samples, "--seed", arguments.seed,
                       "--threads", arguments.threads, "--examples", 0, "--json", result, *([] if way.shared else ["--no-prefix"])]
            done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
            if done.returncode != 0:
                raise RuntimeError(f"{' '.join(map(str, command))} failed:\n{done.stderr[-2000:]}")
            way.evaluations.append(json.loads(result.read_text()))
        print(f"set {number + 1}/{arguments.sets}, {way.name}: {way.evaluations[-1]['seconds']:.1f} s", file=sys.stderr)

    for number in range(arguments.sets):
        # Each way meets each other one in both orders, so that a machine that slows down favours none.
        for way in ways if number % 2 == 0 else reversed(ways):
            evaluate(way, number)

    common = {"machine": machine(), "command": " ".join(["bench/sweep.sh", *sys.argv[3:]]),
              "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}
    figures = []
    print(f"{'episodes':>8} {'prompts':>8} {'tokens/s':>14} {'a sequence':>10} {'s a sweep':>14} {'episodes/h':>14} {'shared/alone':>14} "
          f"{'prefilled':>10} {'pass@1':>14} {'turns':>14}")
    with_error = lambda pair, digits: f"{pair[0]:.{digits}f} ± {pair[1]:.{digits}f}"
    for way in ways:
        speed, rate, sweep = (mean_and_error(way.samples(of)) for of in (tokens_a_second, episodes_an_hour, seconds_a_sweep))
        passed, turns = pooled(way, "passed", arguments.samples), pooled(way, "turns")
        alone = next(other for other in ways if other.batch == way.batch and not other.shared)
        ratios = [a / b for a, b in zip(way.samples(episodes_an_hour), alone.samples(episodes_an_hour))]
        ratio = mean_and_error(ratios)
        saved = 1 - sum(way.samples(prefilled)) / sum(alone.samples(prefilled))
        print(f"{way.batch:8} {'shared' if way.shared else 'alone':>8} {with_error(speed, 1):>14} {speed[0] / way.batch:10.1f} "
              f"{with_error(sweep, 1):>14} {with_error(rate, 0):>14} {with_error(ratio, 3) if way.shared else '':>14} "
              f"{f'-{100 * saved:.0f} %' if way.shared else '':>10} {with_error(passed, 3):>14} {with_error(turns, 2):>14}")
        figures.append({"figure": f"{way.name}: episodes an hour", "value": rate[0], "unit": "episodes/h",
                        "against": None if not way.shared else f"prompts alone: {statistics.fmean(alone.samples(episodes_an_hour)):.0f}",
                        "ratio": ratio[0] if way.shared else None, "ratio_standard_error": ratio[1] if way.shared else None, "goal": None,
                        "met": None, "standard_error": rate[1], "samples": way.samples(episodes_an_hour),
                        "tokens_per_second": speed[0], "tokens_per_second_a_sequence": speed[0] / way.batch, "seconds_a_sweep": sweep[0],
                        "prefilled_tokens": sum(way.samples(prefilled)), "evictions": sum(way.samples(lambda e: e["evictions"])),
                        "pass_at_1": {"value": passed[0], "standard_error": passed[1]},
                        "turns": {"value": turns[0], "standard_error": turns[1]}, **common})

    print("\nepisodes an hour\n" + plot(ways))
    shared = [way for way in ways if way.shared]
    peak = max(statistics.fmean(way.samples(episodes_an_hour)) for way in shared)
    best = next(way for way in sorted(shared, key=lambda way: way.batch)
                if statistics.fmean(way.samples(episodes_an_hour)) >= AT_PEAK * peak)
    print(f"\nsmallest sweep at the peak of episodes an hour: {best.batch} episodes")
    unequal = differences(ways)
    near = within_two_errors(ways, "passed", arguments.samples) and within_two_errors(ways, "turns", 1)
    if unequal:
        print(f"NOT EXACT: the episodes of {'; '.join(unequal)} differ from those of {ways[0].name}; pass@1 and turns are "
              f"{'within' if near else 'NOT within'} two standard errors")
    else:
        print(f"pass@1 and turns of all {len(ways)} ways are identical, question by question, as exact arithmetic with the same seeds asks")
    episodes = arguments.sets * arguments.questions * arguments.samples
    figures.append({"figure": "ways with the same pass@1 and turns", "value": len(ways) - len({name.split(", set")[0] for name in unequal}),
                    "unit": "ways", "against": f"{len(ways)} ways, {episodes} episodes each", "ratio": None, "goal": len(ways),
                    "met": not unequal, "within_two_standard_errors": near, "samples": [], **common})
    print(f"written: {write_figures('sweep', figures)}")
    return 1 if unequal else 0


if __name__ == "__main__":
    sys.exit(main())
