"""Eight workers and a learner over a network that fails by chance, with a hub server that is restarted, by kill -9 and in order:
no group is lost, none comes twice, and neither file handles nor memory grow.

    chaos_test.py [--seconds N] [--restart-every SECONDS]
"""
import argparse
import collections
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

from parties import BIN, RUN, Hub, Learner, Scene, wait

WORKERS = 8
NETWORK = ["--errors", "0.1", "--lost", "0.05", "--cut", "0.02"]
STALLS = ["--trickle", "0.005", "--hang", "0.005"]  # each costs a client its 30 s: not in the short form
HANDLES_MORE, MEMORY_MORE = 6, 1.15  # of the last third of the time over the first; handles move with connections in use


class Use:
    """Handles and resident MiB of processes, over time."""

    def __init__(self):
        self.samples: dict[str, list[tuple[int, float]]] = collections.defaultdict(list)

    def look(self, name: str, process: subprocess.Popen) -> None:
        try:
            handles = len(list(pathlib.Path(f"/proc/{process.pid}/fd").iterdir()))
            resident = int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{process.pid}/status").read_text()).group(1)) / 1024
        except (FileNotFoundError, AttributeError):  # it is being restarted
            return
        self.samples[name].append((handles, resident))

    def thirds(self, name: str) -> tuple[int, int, float, float]:
        """The most handles and the median of the memory, in the first third and in the last."""
        samples = self.samples[name]
        third = max(1, len(samples) // 3)
        first, last = samples[:third], samples[-third:]
        return (max(h for h, _ in first), max(h for h, _ in last), statistics.median(m for _, m in first),
                statistics.median(m for _, m in last))

    def check(self, grows: bool) -> None:
        for name in self.samples:
            handles, handles_last, memory, memory_last = self.thirds(name)
            print(f"  {name:9} {len(self.samples[name]):4} looks; handles at most {handles} at first, {handles_last} at last; "
                  f"median memory {memory:.1f} and {memory_last:.1f} MiB")
            if name == "hub":  # begins anew with each restart; its handles are its connections
                continue
            assert not grows or handles_last <= handles + HANDLES_MORE, name
            assert not grows or memory_last <= memory * MEMORY_MORE + 4, name


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--restart-every", type=float, default=5)
    arguments = parser.parse_args()
    long = arguments.seconds >= 120
    with tempfile.TemporaryDirectory() as folder, Scene(pathlib.Path(folder)) as scene:
        hub = Hub(scene)
        names = [f"worker{number}" for number in range(WORKERS)]
        tokens = {name: hub.worker_token(scene.worker_id(name)) for name in names}
        tokens["learner"] = hub.token("ada", "--role", "learner", "--rate", "1000")
        proxy = scene.start("proxy", BIN / "net_proxy", hub.port, *NETWORK, *(STALLS if long else []), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        port = proxy.stdout.readline().strip()
        address = hub.run_address(port)
        learner = Learner(scene, f"http://127.0.0.1:{port}", "--model", scene.tiny_model(), "--every-ms", "3000", "--group", "2", "--wanted", "8",
                          token=tokens["learner"])
        wait("the first version", lambda: learner.lines("version"))
        workers = {name: scene.worker(name, address, tokens[name], "--worker.sweep_groups", "2") for name in names}

        use, restarts, lives = Use(), 0, []
        begin = time.monotonic()
        next_restart = begin + arguments.restart_every
        late = begin + 4 * arguments.seconds  # on a busy machine a little takes long
        while (now := time.monotonic()) < begin + arguments.seconds or (now < late and len(learner.lines("version")) < 4):
            time.sleep(0.5)
            for name, process in {**workers, "learner": learner.process, "hub": hub.process}.items():
                assert process.poll() is None, f"{name} has ended"
                use.look(name, process)
            if time.monotonic() >= next_restart:
                lives.append(use.samples["hub"][-1])
                hub.kill() if restarts % 2 == 0 else hub.stop()
                hub.start()
                restarts += 1
                next_restart += arguments.restart_every
        print(f"{WORKERS} workers, {time.monotonic() - begin:.0f} s, {restarts} restarts of the hub")

        # The end is quiet: what is on its way may arrive.
        proxy.stdin.write("calm\n")
        proxy.stdin.flush()
        learner.finish()
        wait("the end of the run", lambda: learner.lines("finished"))
        for name, process in workers.items():
            assert process.wait(180) == 0, name
        learner.end()
        proxy.stdin.close()
        proxy.wait()
        print("  " + "; ".join(line.strip() for line in proxy.stdout))

        def fields(kind: str) -> list[dict]:
            return [event["fields"] for name in names for event in scene.events(name, kind)]

        made = [event["group"] for event in fields("worker.group")]
        sent = [event["group"] for event in fields("worker.upload")]
        there = [path.name for path in hub.folder.glob(f"{RUN}/rollouts/*/*/*")]
        taken = [line["group"] for line in learner.lines("group")]
        tries = sum(event["attempts"] for event in fields("worker.upload"))
        versions = len(learner.lines("version"))
        print(f"  {versions} versions; {len(made)} groups made, {len(sent)} sent in {tries} tries of the uploader, {len(there)} at the hub, "
              f"{len(taken)} taken; {len(fields('worker.pull'))} versions pulled, {len(fields('hub.error'))} errors told")
        assert made and sorted(made) == sorted(sent) == sorted(there) == sorted(taken), "a group is lost, or is there twice"
        assert len(set(made)) == len(made)
        assert not learner.lines("refused"), learner.lines("refused")
        assert not any(event["dropped"] for event in fields("worker.stop"))
        pulled = [event["version"] for event in fields("worker.pull")]
        assert max(pulled) >= max(1, versions - 5), f"the newest version of {versions} is {max(pulled)} at a worker"
        use.check(grows=long)
        assert max(handles for handles, _ in lives) < 16 * WORKERS, lives
        print(f"  the hub at the end of its lives: handles {max(h for h, _ in lives)}, memory {max(m for _, m in lives):.1f} MiB at most")
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
