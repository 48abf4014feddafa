"""A short demo from end to end: it publishes, trains, evaluates, and says whether the score rose. How far is not its matter."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from fleet import BIN, VENV

SETTINGS = ["--warmup.demonstrations", "16", "--learner.steps", "2", "--learner.batch_groups", "1", "--evaluation.questions", "6"]


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, XDG_CONFIG_HOME=f"{folder}/config", XDG_STATE_HOME=f"{folder}/state", FLOTILLA_VENV=str(VENV))
        demo = subprocess.run([BIN / "flotilla", "demo", "--out", f"{folder}/out", *SETTINGS], env=environment, capture_output=True,
                              text=True)
        said = demo.stdout + demo.stderr
        assert (pathlib.Path(folder) / "out/1/result.json").exists(), said
        result = json.loads((pathlib.Path(folder) / "out/1/result.json").read_text())
        assert result["questions"] == 6 and result["samples"] == 2, result
        # Two steps may or may not raise the score; the exit code says which.
        assert demo.returncode in (0, 1) and ("did not rise" in said) == (demo.returncode == 1), said
        assert "ended with" not in said, said
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
