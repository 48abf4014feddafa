"""kill -9 of a worker and of the learner while a run goes on, a new worker joins, the learner is asked to leave and comes back:
nothing is lost, nothing counts twice, and no task is done by two workers."""
import collections
import json
import pathlib
import struct
import sys
import tempfile

from fleet import RUN, Fleet, kill

STEPS = 12
SETTINGS = ["--learner.steps", str(STEPS), "--learner.budget_seconds", "0", "--learner.batch_groups", "2", "--learner.checkpoint_every",
            "3", "--learner.max_reuse", "2", "--warmup.demonstrations", "64", "--rollout.claims", "true"]


def surviving_uses(events: list[dict]) -> collections.Counter:
    """For each group, the steps of the lineage that survived which trained on it (docs/formats/events.md)."""
    steps: list[dict] = []
    for event in events:
        if event["kind"] == "learner.resume":
            steps = [step for step in steps if step["fields"]["step"] <= event["fields"]["step"]]
        elif event["kind"] == "learner.step":
            steps.append(event)
    assert [step["fields"]["step"] for step in steps] == list(range(1, STEPS + 1)), "steps are missing from the lineage"
    return collections.Counter(group for step in steps for group in step["fields"]["groups"])


def header_of(group: pathlib.Path) -> dict:
    """docs/formats/group.md"""
    data = group.read_bytes()
    return json.loads(json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])["__metadata__"]["group"])


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, Fleet(pathlib.Path(folder) / "run", SETTINGS) as fleet:
        learner = fleet.learner()
        fleet.wait_for_run(learner)
        first, second = fleet.worker("first"), fleet.worker("second")
        fleet.wait("step 2", lambda: len(fleet.events("learner.step")) >= 2)
        before = {e["writer"] for e in fleet.events("worker.start")}
        assert len(before) == 2, before
        kill(first)
        third = fleet.worker("third")
        fleet.wait("a group of the new worker", lambda: [e for e in fleet.events("worker.upload") if e["writer"] not in before])
        fleet.wait("step 5", lambda: [e for e in fleet.events("learner.step") if e["fields"]["step"] >= 5])
        kill(learner)
        learner = fleet.learner()
        fleet.wait("the resumed learner's step 8", lambda: [e for e in fleet.events("learner.step") if e["fields"]["step"] >= 8])
        # Asked to leave, it ends well and the run goes on with the next one.
        leave = fleet.command("stop", fleet.address, "--leave")
        assert leave.returncode == 0, leave.stderr
        assert learner.wait() == 0
        learner = fleet.learner()
        assert learner.wait() == 0, (fleet.folder / "learner.log").read_text()
        assert second.wait() == 0 and third.wait() == 0

        # The events of one life are in order; the learner's own folder also has what a kill kept from the hub.
        events = sorted((e for kind in ("learner.resume", "learner.step") for e in fleet.events(kind)), key=lambda e: e["sequence"])
        uses = surviving_uses(events)
        assert len(fleet.events("learner.resume")) == 2
        assert max(uses.values()) <= 2, uses
        versions = [e["fields"]["version"] for e in fleet.events("learner.publish")]
        assert versions == sorted(set(versions)), f"a version was published twice: {versions}"
        workers = collections.defaultdict(set)
        for group in (fleet.hub / RUN / "rollouts").glob("*/*/*"):
            header = header_of(group)
            workers[header["counter"]].add(header["worker"])
        # The killed worker's lease of 15 minutes may have run out; every other task has one worker.
        taken_over = list((fleet.hub / RUN / "claims").glob("*/*.0000000001"))
        assert taken_over or all(len(names) == 1 for names in workers.values()), workers
        refused = [e for e in fleet.events("learner.dropped_group") if "block" in e["fields"]["reason"]]
        assert not refused, refused
        shown = fleet.command("show", fleet.address).stdout
        assert "claims: epoch 0" in shown, shown
        check = fleet.command("verify", "--run", fleet.address)
        assert check.returncode == 0, check.stdout + check.stderr
        print(f"{STEPS} steps; {len(uses)} groups trained on, none more than {max(uses.values())} times; versions {versions}")
        print(check.stdout.strip())
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
