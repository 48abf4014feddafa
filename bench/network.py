"""How soon a worker behind a home's link has a new version of SmolLM2 in use; writes bench/out/network.json and prints a table.

A hub server (TLS 1.3, a token) and a learner that changes weights by chance on one side, a `flotilla work` that sweeps on
the other: 80 Mbit/s to it, 20 from it, and a delay in each direction. All on this machine, so that learner and hub take
their share of its cores. The first version comes as an anchor, the others as deltas. The time is from the moment at which
`head` got its name in the hub's folder to the moment at which the engine has the weights.
"""
import argparse
import datetime
import json
import pathlib
import re
import statistics
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests/net"), str(ROOT / "bench")]
from measure import machine, write_figures  # noqa: E402
from network import AT_HOME, HUB_ADDRESS, Link, enter_namespaces  # noqa: E402
from parties import BIN, Hub, Learner, Scene, packaged_model, wait  # noqa: E402

GOALS = {15: 1.0}  # seconds, by delay in ms
PARTS = ("notice", "fetch", "check", "wait", "swap")


class Moves:
    """When `head` moved to each version: its file's change time, which the renaming sets."""

    def __init__(self, head: pathlib.Path):
        self.head, self.times = head, {}

    def look(self) -> None:
        try:
            text, moved = self.head.read_text(), self.head.stat().st_ctime
        except FileNotFoundError:
            return
        self.times.setdefault(int(re.search(r'"version": ?(\d+)', text).group(1)), moved)


def measure(delay_ms: int, versions: int, every_ms: int, changed: float) -> list[dict]:
    with tempfile.TemporaryDirectory() as folder, Scene(pathlib.Path(folder)) as scene, Link(BIN / "net_link", delay_ms):
        hub = Hub(scene, "--self-signed", address=HUB_ADDRESS)
        token = hub.worker_token(scene.worker_id("worker"))
        moves = Moves(hub.folder / "ada/demo/head")
        learner = Learner(scene, hub.folder, "--model", packaged_model(), "--every-ms", str(every_ms), "--changed",
                          str(changed), "--group", "8")
        wait("the first version", lambda: learner.lines("version"), 600)
        worker = scene.worker("worker", hub.run_address(), token, "--worker.sweep_groups", "4", before=AT_HOME)

        def pulled() -> list[dict]:
            """All but the first."""
            moves.look()
            assert worker.poll() is None and learner.process.poll() is None, "worker or learner has ended"
            return [event for event in scene.events("worker", "worker.pull") if event["fields"]["path"].startswith("delta")]

        # The second one waited while the first was on its way.
        wait("versions at the worker", lambda: len(pulled()) > versions, 600 + versions * every_ms / 1000)
        events = pulled()[1:versions + 1]
        learner.finish()
        worker.wait(120)
        learner.end()
        results = []
        for event in events:
            fields = event["fields"]
            total = event["time_ms"] / 1000 - moves.times[fields["version"]]
            parts = {name: fields[f"{name}_seconds"] for name in PARTS[1:]}
            parts["notice"] = total - fields["seconds"]
            results.append({"version": fields["version"], "bytes": fields["bytes"], "seconds": total, **parts})
        return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delays", default="15,150", help="ms in each direction")
    parser.add_argument("--versions", type=int, default=15)
    parser.add_argument("--every-ms", type=int, default=5000)
    parser.add_argument("--changed", type=float, default=0.005, help="share of the weights, a version")
    arguments = parser.parse_args()
    enter_namespaces()
    print(f"{'delay':>6} {'versions':>8} {'bytes':>8} | {'in use after (s)':^25} | " + " ".join(f"{part:>7}" for part in PARTS) + " | link")
    print(f"{'ms':>6} {'':>8} {'':>8} | {'median':>7} {'90 %':>8} {'most':>8} | {'medians (s)':^39} | (s)")
    figures = []
    for delay in map(int, arguments.delays.split(",")):
        results = measure(delay, arguments.versions, arguments.every_ms, arguments.changed)
        seconds = sorted(result["seconds"] for result in results)
        size = statistics.median(result["bytes"] for result in results)
        link = size * 8 / 80e6 + delay / 1000
        medians = [statistics.median(result[part] for result in results) for part in PARTS]
        late = seconds[min(len(seconds) - 1, len(seconds) * 9 // 10)]
        print(f"{delay:6} {len(results):8} {size:8.0f} | {statistics.median(seconds):7.3f} {late:8.3f} {seconds[-1]:8.3f} | "
              + " ".join(f"{median:7.3f}" for median in medians) + f" | {link:.3f}", flush=True)
        goal = GOALS.get(delay)
        figures.append({"figure": f"a version in use behind {delay} ms", "value": seconds[-1], "unit": "s after head moved, the latest",
                        "against": "the link alone: one way and the bytes", "ratio": seconds[-1] / link, "goal": goal,
                        "met": goal is None or seconds[-1] <= goal, "samples": results, "machine": machine(),
                        "command": " ".join(["bench/network.sh", *sys.argv[1:]]),
                        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")})
    for figure in figures:
        if figure["goal"]:
            print(f"{figure['figure']}: at most {figure['value']:.3f} s; goal {figure['goal']} {'met' if figure['met'] else 'NOT MET'}")
    print(write_figures("network", figures))
    return 0 if all(figure["met"] for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
