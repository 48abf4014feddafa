"""20 sequential steps, twice, one seed, one worker: every group file and every state digest is equal, byte for byte."""
import hashlib
import json
import pathlib
import sys
import tempfile

from fleet import RUN, Fleet

SETTINGS = ["--learner.mode", "sequential", "--learner.steps", "20", "--learner.budget_seconds", "0", "--learner.batch_groups", "1",
            "--warmup.demonstrations", "64", "--learner.threads", "2"]


def run(folder: pathlib.Path) -> tuple[dict[str, str], dict[int, str]]:
    with Fleet(folder, SETTINGS) as fleet:
        learner = fleet.learner()
        fleet.wait_for_run(learner)
        worker = fleet.worker("only", "--worker.sweep_groups", "1")
        assert learner.wait() == 0, (folder / "learner.log").read_text()
        assert worker.wait() == 0, (folder / "only.log").read_text()
        root = fleet.hub / RUN
        groups = {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
                  for path in sorted((root / "rollouts").glob("*/*/*"))}
        trained = {group for event in fleet.events("learner.step") for group in event["fields"]["groups"]}
        # The worker may begin a group that no step needs any more: when it ends is a matter of time.
        groups = {name: digest for name, digest in groups.items() if name.rsplit("/", 1)[1] in trained}
        states = {event["fields"]["version"]: event["fields"]["state"] for event in fleet.events("learner.publish")}
        return groups, states


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        first = run(pathlib.Path(folder) / "first")
        second = run(pathlib.Path(folder) / "second")
    groups, states = first
    assert len(states) == 21, states
    assert len(groups) == 20, len(groups)
    assert first == second, json.dumps({"first": first, "second": second}, indent=1)
    print(f"{len(groups)} groups and {len(states)} states are equal in both runs; the last state is {states[20]}")
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
