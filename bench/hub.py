"""A thousand simulated workers on one hub process, which shares this machine's cores with them; writes bench/out/hub.json and
prints a table.

Each worker has a token and two connections: it waits for `head` (a request every 20 s), fetches every version (a manifest and a
delta), and uploads a group and a status a minute. With TLS 1.3 and in plain text. Then 64 connections read a small object as
fast as they get it. Beside it, of the same minutes: what a socket of this machine moves from one process to another.
"""
import argparse
import datetime
import json
import pathlib
import re
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests/net"), str(ROOT / "bench")]
from measure import machine, write_figures  # noqa: E402
from parties import BIN, Hub, Scene  # noqa: E402

MEMORY_GOAL = 512  # MiB
ROWS = ("head, moved", "version there, after head moved", "manifest", "delta", "group", "status", "head, nothing new", "small read")


class Watch(threading.Thread):
    """The most handles and memory of a process, and the processor time that it took."""

    def __init__(self, pid: int):
        super().__init__(daemon=True)
        self.proc, self.handles, self.going = pathlib.Path(f"/proc/{pid}"), 0, True

    def run(self):
        while self.going:
            self.handles = max(self.handles, len(list((self.proc / "fd").iterdir())))
            time.sleep(0.5)

    def memory_mib(self) -> float:
        return int(re.search(r"VmHWM:\s+(\d+)", (self.proc / "status").read_text()).group(1)) / 1024

    def cpu_seconds(self) -> float:
        fields = (self.proc / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100


def loopback_mb_s(seconds: float = 1.0) -> float:
    """A socket of this machine, one process at each end."""
    listener = socket.create_server(("127.0.0.1", 0))
    sender = subprocess.Popen([sys.executable, "-c", "import socket, sys\ns = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
                               "data = bytes(1 << 18)\ntry:\n  while True: s.sendall(data)\nexcept OSError: pass", str(listener.getsockname()[1])])
    connection, _ = listener.accept()
    buffer, count, end = bytearray(1 << 18), 0, time.monotonic() + seconds
    while time.monotonic() < end:
        count += connection.recv_into(buffer)
    connection.close()
    sender.wait()
    return count / seconds / 1e6


def measure(tls: bool, arguments: argparse.Namespace) -> dict:
    with tempfile.TemporaryDirectory() as folder, Scene(pathlib.Path(folder)) as scene:
        hub = Hub(scene, "--connections", "4096", "--connections-per-address", "4096", *(["--self-signed"] if tls else []))
        watch = Watch(hub.process.pid)
        watch.start()
        load = scene.start("load", BIN / "hub_load", f"{hub.folder}.state", hub.port, *(["--tls"] if tls else []), "--workers",
                           arguments.workers, "--seconds", arguments.seconds, "--ramp-s", arguments.ramp_s, "--burst-s",
                           arguments.burst_s, "--version-every-s", arguments.version_every_s, stdout=subprocess.PIPE)
        assert load.stdout.readline() == "tokens made\n", (scene.folder / "load.log").read_text()
        result = {"tls": tls, **json.loads(load.stdout.readline())}
        result |= {"memory_mib": watch.memory_mib(), "handles": watch.handles, "hub_cpu_seconds": watch.cpu_seconds()}
        result |= json.loads(load.stdout.readline())
        result["memory_mib_burst"] = watch.memory_mib()
        assert load.wait() == 0
        watch.going = False
        watch.join()
        result["refused"] = [line for line in (scene.folder / "hub.log").read_text().splitlines() if "refus" in line][:10]
        return result


def print_result(result: dict, workers: int) -> None:
    steady = result["steady"]
    total = sum(kind["count"] for name, kind in steady["kinds"].items() if not name.startswith("version"))
    moved = sum(kind["bytes_received"] + kind["bytes_sent"] for kind in steady["kinds"].values())
    print(f"\n{workers} workers, {'TLS 1.3' if result['tls'] else 'plain text'}, {steady['seconds']:.0f} s: {total / steady['seconds']:.1f} "
          f"requests/s, {moved / steady['seconds'] / 1e6:.1f} MB/s; hub at most {result['memory_mib']:.0f} MiB and {result['handles']} file "
          f"handles, {result['hub_cpu_seconds']:.0f} s of processor time; failures: {steady['failures'] or 'none'}")
    print(f"{'':34} {'count':>8} {'a second':>9} {'50 % ms':>9} {'99 % ms':>9} {'most ms':>9} {'MB':>8}")
    kinds = dict(steady["kinds"]) | {"small read": result["burst"]["kinds"]["small read"]}
    for row in ROWS:
        if kind := kinds.get(row):
            print(f"{row:34} {kind['count']:8} {kind['per_second']:9.1f} {kind['ms_50']:9.1f} {kind['ms_99']:9.1f} {kind['ms_most']:9.1f} "
                  f"{(kind['bytes_received'] + kind['bytes_sent']) / 1e6:8.1f}")
    print(f"with the small reads the hub had at most {result['memory_mib_burst']:.0f} MiB")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--ramp-s", type=float, default=40)
    parser.add_argument("--version-every-s", type=float, default=30)
    parser.add_argument("--burst-s", type=float, default=10)
    parser.add_argument("--only", choices=["tls", "plain"])
    arguments = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
    figures = []
    for tls in (True, False):
        if arguments.only and (arguments.only == "tls") != tls:
            continue
        result = measure(tls, arguments)
        result["loopback_mb_s"] = loopback_mb_s()
        print_result(result, arguments.workers)
        print(f"a socket of this machine moves {result['loopback_mb_s']:.0f} MB/s")
        steady = result["steady"]["kinds"]
        figures.append({"figure": f"memory of a hub with {arguments.workers} workers, {'TLS 1.3' if tls else 'plain text'}",
                        "value": result["memory_mib"], "unit": "MiB", "against": "the goal", "ratio": result["memory_mib"] / MEMORY_GOAL,
                        "goal": MEMORY_GOAL, "met": result["memory_mib"] <= MEMORY_GOAL and not result["steady"]["failures"],
                        "samples": [kind["count"] for kind in steady.values()], "measured": result, "machine": machine(),
                        "command": " ".join(["bench/hub.sh", *sys.argv[1:]]),
                        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")})
    print(write_figures("hub", figures))
    return 0 if all(figure["met"] for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
