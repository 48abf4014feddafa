"""A worker at home behind a slow link: versions reach it, its groups come back, through a time without a network too."""
import json
import pathlib
import sys
import tempfile

from network import AT_HOME, HUB_ADDRESS, Link, enter_namespaces
from parties import BIN, Hub, Learner, Scene, wait

VERSIONS = 6


def main() -> int:
    enter_namespaces()
    with tempfile.TemporaryDirectory() as folder, Scene(pathlib.Path(folder)) as scene, Link(BIN / "net_link", delay_ms=15) as link:
        hub = Hub(scene, "--self-signed", address=HUB_ADDRESS)
        token = hub.worker_token(scene.worker_id("worker"))
        learner = Learner(scene, hub.folder, "--model", scene.tiny_model(), "--versions", str(VERSIONS), "--every-ms",
                          "1500")
        wait("the first version", lambda: learner.lines("version"))
        worker = scene.worker("worker", hub.run_address(), token, "--worker.sweep_groups", "2", before=AT_HOME)

        def newest() -> int:
            return max([event["fields"]["version"] for event in scene.events("worker", "worker.pull")], default=-1)

        wait("the worker's second version", lambda: newest() > 1)
        link.cut(2000)
        wait("the last version", lambda: newest() == VERSIONS - 1)
        wait("a group of the last version", lambda: [event for event in scene.events("worker", "worker.group")
                                                     if event["fields"]["version"] == VERSIONS - 1])
        learner.finish()
        assert worker.wait(60) == 0
        learner.end()
        sent = {event["fields"]["group"] for event in scene.events("worker", "worker.upload")}
        taken = [line["group"] for line in learner.lines("group")]
        assert len(taken) == len(set(taken)) and sent <= set(taken), (sent, taken)
        assert not learner.lines("refused"), learner.lines("refused")
        print(f"{VERSIONS} versions, {len(taken)} groups")
        print(json.dumps(scene.events("worker", "worker.pull")[-1]["fields"]))
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
