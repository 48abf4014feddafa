"""How much a worker slows down a compile of src/engine; writes bench/out/polite.json and prints a table.

The compile runs in turns without a worker and beside one of each setting of worker.politeness, with one job and with a job a
core. The worker is the real program on a real run whose learner has gone: it sweeps as long as `head` wants groups.
"""
import argparse
import datetime
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/acceptance"))

from fleet import Fleet, kill  # noqa: E402
from measure import machine, write_figures  # noqa: E402

GOAL = 1.10  # at the polite setting
SETTINGS = ["polite", "normal", "greedy"]
# A run that wants more groups than a worker can make, of the model as it is.
RUN_SETTINGS = ["--warmup.demonstrations", "0", "--learner.wanted_groups", "65536", "--learner.batch_groups", "4096"]


class Compile:
    """Objects of src/engine in a build of its own, without ccache, at ordinary priority."""

    def __init__(self, folder: pathlib.Path, short: bool):
        self.folder, self.environment = folder, dict(os.environ, CCACHE_DISABLE="1")
        configure = ["cmake", "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"]
        if "FLOTILLA_TORCH" in os.environ:
            configure.append(f"-DFLOTILLA_TORCH={os.environ['FLOTILLA_TORCH']}")
        self.run(configure)
        self.objects = folder / "src/engine/CMakeFiles/flotilla_engine.dir"
        target = "src/engine/CMakeFiles/flotilla_engine.dir/sampler.cc.o" if short else "flotilla_engine"
        self.command = ["ninja", "-C", str(folder), target]
        self.run(self.command)  # what it stands on, and the files in the page cache

    def run(self, command: list[str]) -> None:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")

    def seconds(self, jobs: int) -> float:
        for compiled in self.objects.glob("**/*.o"):
            compiled.unlink()
        begin = time.monotonic()
        self.run([*self.command, "-j", str(jobs)])
        return time.monotonic() - begin


class Worker:
    """A worker at one setting, sweeping, until the end of the scope."""

    def __init__(self, fleet: Fleet, setting: str, threads: int):
        self.fleet, self.setting, self.threads = fleet, setting, threads

    def __enter__(self):
        before = len(self.fleet.events("worker.pull"))
        self.process = self.fleet.start(f"worker-{self.setting}", "work", self.fleet.address, "--name", f"bench-{self.setting}",
                                        "--worker.threads", str(self.threads), "--worker.politeness", self.setting)
        self.fleet.wait("a worker with weights", lambda: len(self.fleet.events("worker.pull")) > before or self.process.poll() is not None)
        assert self.process.poll() is None, (self.fleet.folder / f"worker-{self.setting}.log").read_text()
        return self

    def __exit__(self, *_):
        kill(self.process)

    def processor_seconds(self) -> float:
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def cores(self, begin: tuple[float, float]) -> float:
        return (self.processor_seconds() - begin[1]) / (time.monotonic() - begin[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=SETTINGS)
    parser.add_argument("--jobs", type=int, nargs="+", default=sorted({1, os.cpu_count()}), help="compile jobs at a time")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of the worker")
    parser.add_argument("--short", action="store_true", help="one round of one file: does it work?")
    arguments = parser.parse_args()
    if arguments.short:
        arguments.rounds = 1

    with tempfile.TemporaryDirectory() as scratch, Fleet(pathlib.Path(scratch) / "run", RUN_SETTINGS) as fleet:
        print("preparing the compile and the run", file=sys.stderr)
        compile_engine = Compile(pathlib.Path(scratch) / "build", arguments.short)
        learner = fleet.learner()
        fleet.wait_for_run(learner)
        head = fleet.hub / "test/run/head"
        fleet.wait("version 0", lambda: head.exists() or learner.poll() is not None)
        assert learner.poll() is None, (fleet.folder / "learner.log").read_text()
        kill(learner)

        seconds: dict[tuple[str, int], list[float]] = {}
        cores: dict[tuple[str, int], list[float]] = {}
        alone: dict[str, list[float]] = {}
        for number in range(arguments.rounds):
            for jobs in arguments.jobs:
                for setting in ["none", *arguments.settings]:
                    key = (setting, jobs)
                    if setting == "none":
                        seconds.setdefault(key, []).append(compile_engine.seconds(jobs))
                    else:
                        with Worker(fleet, setting, arguments.threads) as worker:
                            # What it takes of an idle machine; the compile begins while it sweeps at full speed.
                            begin = time.monotonic(), worker.processor_seconds()
                            fleet.wait("processor time", lambda: worker.processor_seconds() > begin[1] + 2)
                            alone.setdefault(setting, []).append(worker.cores(begin))
                            begin = time.monotonic(), worker.processor_seconds()
                            seconds.setdefault(key, []).append(compile_engine.seconds(jobs))
                            cores.setdefault(key, []).append(worker.cores(begin))
                    print(f"round {number + 1}/{arguments.rounds}, {jobs} jobs, worker {setting}: {seconds[key][-1]:.1f} s", file=sys.stderr)

    figures = []
    print(f"{'compile':>10} {'worker':>8} {'seconds':>9} {'ratio':>7} {'cores of the worker':>20} {'of an idle machine':>19}")
    for jobs in arguments.jobs:
        baseline = seconds["none", jobs]
        print(f"{f'{jobs} jobs':>10} {'none':>8} {statistics.median(baseline):9.1f}")
        for setting in arguments.settings:
            mine = seconds[setting, jobs]
            ratio = statistics.median(a / b for a, b in zip(mine, baseline))
            goal = GOAL if setting == "polite" else None
            taken, idle = statistics.median(cores[setting, jobs]), statistics.median(alone[setting])
            print(f"{'':>10} {setting:>8} {statistics.median(mine):9.1f} {ratio:7.3f} {taken:20.2f} {idle:19.2f}")
            figures.append({"figure": f"compile of src/engine, {jobs} jobs, beside a {setting} worker", "value": statistics.median(mine),
                            "unit": "s", "against": f"no worker: {statistics.median(baseline):.1f} s", "ratio": ratio, "goal": goal,
                            "met": None if goal is None else ratio <= goal, "samples": {"beside": mine, "alone": baseline},
                            "worker_cores": taken, "worker_cores_idle_machine": idle, "machine": machine(),
                            "command": " ".join(["bench/polite.sh", *sys.argv[1:]]),
                            "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")})
    print(f"written: {write_figures('polite', figures)}")
    return 1 if any(figure["met"] is False for figure in figures) else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(main())
