"""The bundle works where there is nothing but glibc: a worker in a bare root folder serves a run of a learner outside."""
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile

from fleet import BIN, ROOT, RUN, Fleet

BUILD = pathlib.Path(os.environ.get("FLOTILLA_BUILD", BIN.parent))
SETTINGS = ["--learner.mode", "sequential", "--learner.steps", "1", "--learner.budget_seconds", "0", "--learner.batch_groups", "1",
            "--warmup.demonstrations", "16", "--learner.threads", "2"]
ARCH = platform.machine()
LIBRARIES = pathlib.Path(f"/usr/lib/{ARCH}-linux-gnu")


def bare_root(root: pathlib.Path) -> None:
    """What every glibc Linux has, and nothing else: no shell, no other library, no user's home."""
    interpreter = next(line.strip().split()[0] for line in subprocess.run(
        ["ldd", BIN / "flotilla"], check=True, capture_output=True, text=True).stdout.splitlines() if "/ld-linux" in line)
    for file in [pathlib.Path(interpreter), *(LIBRARIES / f"lib{name}" for name in ("c.so.6", "m.so.6"))]:
        target = root / file.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    for folder in ("tmp", "proc"):
        (root / folder).mkdir()


def inside(root: pathlib.Path, *arguments: str) -> list[str]:
    """With /proc, by which the loader finds the folder that the program lies in."""
    enter = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    script = 'mount --rbind /proc "$0/proc" && exec env -i HOME=/home PATH="$PATH:/usr/sbin" chroot "$0" /bundle/bin/flotilla "$@"'
    return [*enter, "sh", "-c", script, str(root), *arguments]


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        root = pathlib.Path(scratch) / "root"
        root.mkdir()
        bare_root(root)
        out = pathlib.Path(scratch) / "out"
        print(subprocess.run([ROOT / "tools/bundle.py", BUILD, ARCH, out], check=True, stdout=subprocess.PIPE, text=True).stdout)
        archive = next(out.glob("*.tar.xz"))
        subprocess.run(["tar", "--extract", "--file", archive, "--directory", scratch], check=True)
        (pathlib.Path(scratch) / archive.name.removesuffix(".tar.xz")).rename(root / "bundle")
        licensed = {path.name for path in (root / "bundle/LICENSES").iterdir()}
        assert {"flotilla", "SOURCES", "libxapian30", "libssl3", "libsqlite3-0", "libstdc++6", "libcli11-dev"} <= licensed, licensed
        assert any(re.fullmatch(r"libboost[\d.]+-dev\.gz", name) for name in licensed), licensed

        version = subprocess.run(inside(root, "version"), check=True, capture_output=True, text=True).stdout
        assert version.startswith("flotilla "), version
        limits = subprocess.run(inside(root, "bench", "limits"), check=True, capture_output=True, text=True).stdout
        print(version + limits)

        with Fleet(root, SETTINGS) as fleet:
            learner = fleet.learner()
            fleet.wait_for_run(learner)
            with open(root / "worker.log", "wb") as log:
                worker = subprocess.Popen(inside(root, "work", f"/hub/{RUN}", "--worker.threads", "1", "--worker.sweep_groups", "1"),
                                          stdout=log, stderr=log)
            fleet.processes.append(worker)
            learner_result = learner.wait()
            assert learner_result == 0, (root / "learner.log").read_text() + (root / "worker.log").read_text()
            assert worker.wait() == 0, (root / "worker.log").read_text()
            groups = list((fleet.hub / RUN / "rollouts").glob("*/*/*"))
            assert groups, (root / "worker.log").read_text()
    print(f"{len(groups)} groups from the bare root")
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
