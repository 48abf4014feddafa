"""The parties of a run as processes: a hub server, a learner without training, workers. For tests of the network."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/acceptance"))
from fleet import BIN, VENV, packaged_model  # noqa: E402

RUN = "ada/demo"


class Scene:
    """A folder for what the parties keep, and their ends."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.processes: list[subprocess.Popen] = []
        folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        if kind:
            for log in sorted(self.folder.glob("*.log")):
                print(f"--- {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-20:]))

    def start(self, name: str, *command, environment: dict = {}, **settings) -> subprocess.Popen:
        own = {"XDG_CONFIG_HOME": self.folder / "config", "XDG_CACHE_HOME": self.folder / "cache",
               "XDG_STATE_HOME": self.folder / "state" / name, "FLOTILLA_VENV": VENV}
        clean = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
        with open(self.folder / f"{name}.log", "ab") as log:
            settings = {"stdout": log, "stderr": log, "text": True} | settings
            process = subprocess.Popen([str(part) for part in command],
                                       env={key: str(value) for key, value in (clean | own | environment).items()}, **settings)
        self.processes.append(process)
        return process

    def run(self, name: str, *command, environment: dict = {}) -> str:
        """Its output; a failure is one of the test."""
        process = self.start(name, *command, environment=environment, stdout=subprocess.PIPE)
        output, _ = process.communicate()
        assert process.returncode == 0, f"{name}: {output}"
        return output

    def wait_for_line(self, name: str, text: str, process: subprocess.Popen) -> None:
        log = self.folder / f"{name}.log"
        wait(f"'{text}' of {name}", lambda: text in log.read_text() or process.poll() is not None)
        assert text in log.read_text(), name

    def tiny_model(self) -> pathlib.Path:
        folder = self.folder / "model"
        self.run("model", BIN / "net_model", packaged_model(), folder)
        return folder

    def worker_id(self, name: str) -> str:
        """Workers print it before they need a hub."""
        process = self.start(name, BIN / "flotilla", "work", f"http://127.0.0.1:1/{RUN}", "--name", name, stdout=subprocess.PIPE,
                             environment={"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none"})
        line = process.stdout.readline()
        process.kill()
        process.wait()
        return re.match(r"worker ([0-9a-f]+) ", line).group(1)

    def worker(self, name: str, address: str, token: dict, *arguments, before=()) -> subprocess.Popen:
        return self.start(name, *before, BIN / "flotilla", "work", address, "--name", name, "--worker.politeness", "greedy",
                          "--worker.threads", "1", *arguments, environment=token)

    def events(self, worker: str, kind: str) -> list[dict]:
        """Of the worker's own folder: the hub has them a little later."""
        found = []
        for segment in sorted((self.folder / "state" / worker).glob("flotilla/workers/*/events/*/*/*/*.jsonl")):
            for line in segment.read_text().splitlines():
                if f'"{kind}"' in line:
                    found.append(json.loads(line))
        return found


class Hub:
    """`flotilla hub serve`, at one port for as often as it is started."""

    def __init__(self, scene: Scene, *arguments: str, address: str = "127.0.0.1"):
        self.scene, self.address, self.arguments = scene, address, arguments
        self.folder = scene.folder / "hub"
        self.port, self.pin = "0", None
        self.process = None
        self.start()

    def start(self) -> None:
        self.process = self.scene.start("hub", BIN / "flotilla", "hub", "serve", self.folder, "--create", "--address", self.address,
                                        "--port", self.port, "--metrics-port", "0", "--grace", "5", *self.arguments,
                                        stdout=subprocess.PIPE)
        line = self.process.stdout.readline()
        self.scheme, self.port, self.metrics_port = re.search(r"at (https?)://[^ ]*:(\d+); metrics at .*:(\d+)/", line).groups()
        if self.scheme == "https":
            self.pin = re.search(r", pin (\S+)$", self.process.stdout.readline()).group(1)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) == 0

    def run_address(self, port: str | None = None) -> str:
        pin = f"?pin={self.pin}" if self.pin else ""
        return f"{self.scheme}://{self.address}:{port or self.port}/{RUN}{pin}"

    def token(self, scope: str, *arguments: str) -> dict:
        added = self.scene.run("token", BIN / "flotilla", "hub", "token", "add", self.folder, scope, *arguments)
        return dict(line.split("=", 1) for line in added.splitlines())

    def worker_token(self, worker: str) -> dict:
        return self.token(RUN, "--worker", worker)


class Learner:
    """tests/net/learner.cc; what it says, as it says it."""

    def __init__(self, scene: Scene, hub, *arguments, token: dict = {}):
        self.lines_path = scene.folder / "learner.lines"
        with open(self.lines_path, "wb") as lines:
            self.process = scene.start("learner", BIN / "net_learner", hub, RUN, *arguments, environment=token, stdin=subprocess.PIPE,
                                       stdout=lines)

    def lines(self, key: str) -> list[dict]:
        whole = self.lines_path.read_text().rpartition("\n")[0]
        return [line for line in map(json.loads, whole.splitlines()) if key in line]

    def finish(self) -> None:
        self.process.stdin.write("finish\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.stdin.close()
        assert self.process.wait(120) == 0


def wait(what: str, condition, seconds: float = 120):
    """Polls: what is waited for are other processes. The deadline is only for a failure."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        result = condition()
        if result:
            return result
        time.sleep(0.05)
    raise AssertionError(f"waited {seconds:.0f} s in vain for {what}")
