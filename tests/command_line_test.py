"""What the built programs say of a wrong use: exit code, who says it, what was meant; examples in all help pages."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = pathlib.Path(os.environ.get("FLOTILLA_BIN", ROOT / "build/release/bin"))
USAGE, FAILURE = 2, 1


def flotilla(*arguments: str) -> subprocess.CompletedProcess:
    with tempfile.TemporaryDirectory() as home:
        environment = {"HOME": home, "PATH": os.environ["PATH"]}
        return subprocess.run([BIN / "flotilla", *arguments], env=environment, cwd=home, capture_output=True, text=True)


class CommandLine(unittest.TestCase):
    def fails(self, code: int, message: str, *arguments: str) -> None:
        done = flotilla(*arguments)
        self.assertRegex(done.stderr, message)
        self.assertRegex(done.stderr, r"(?m)^flotilla: ")
        self.assertEqual(done.returncode, code, done.stderr)

    def test_every_help_page_has_an_example(self):
        def commands(*path: str) -> list[tuple[str, ...]]:
            text = flotilla(*path, "--help").stdout
            below = re.search(r"^(?:Subcommands|SUBCOMMANDS):\n((?:  .*\n)+)", text, re.M)
            names = re.findall(r"^  ([a-z]+) ", below.group(1), re.M) if below else []
            return [path] * bool(path) + [one for name in names for one in commands(*path, name)]

        pages = commands()
        self.assertGreater(len(pages), 18)
        for page in pages:
            self.assertRegex(flotilla(*page, "--help").stdout, r"Examples?:\n  flotilla " + page[0], page)

    def test_a_misspelt_setting_of_a_worker_is_told_the_nearest(self):
        run = "/no/hub/ada/demo"
        for arguments in ((run, "--worker.swep_groups", "3"), ("--worker.swep_groups=3", run)):
            self.fails(USAGE, "nearest known one is --worker.sweep_groups", "work", *arguments)
        self.fails(USAGE, "unknown argument '--nmae'", "work", run, "--nmae", "x")

    def test_a_worker_takes_its_section_of_a_run_and_no_misspelt_one(self):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write((ROOT / "configs/demo.toml").read_text() + "\n")
            file.flush()
            self.fails(FAILURE, "/no/hub", "work", "/no/hub/ada/demo", "--config", file.name)
            file.write("[wroker]\n")
            file.flush()
            self.fails(USAGE, "nearest known section is worker", "work", "/no/hub/ada/demo", "--config", file.name)

    def test_a_bucket_is_a_hub_that_needs_keys_and_settings_that_exist(self):
        for command in (("show",), ("work",), ("eval",), ("verify", "--run")):
            self.fails(FAILURE, "no keys for S3.*AWS_ACCESS_KEY_ID", *command, "s3://bucket/ada/demo?endpoint=http://h/x")
            self.fails(FAILURE, "no keys for S3", *command, "https://hub.example.org/ada/demo")
        self.fails(USAGE, "unknown setting 'reigon'", "show", "s3://bucket/ada/demo?reigon=x")
        self.fails(USAGE, "a folder, s3://BUCKET or https://HOST", "show", "ftp://hub.example.org/ada/demo")

    def test_a_missing_model_is_a_failure_everywhere(self):
        for command in ("eval", "chat", "serve"):
            self.fails(FAILURE, "none.gguf", command, "none.gguf")
        self.fails(FAILURE, "none.gguf", "bench", "prefill", "--model", "none.gguf")
        self.fails(FAILURE, "none.gguf", "bench", "sync", "--model", "none.gguf")
        if (BIN / "flotilla-learner").exists():
            self.fails(FAILURE, "none.gguf", "learn", "hub/ada/demo", "--model.source", "none.gguf")

    def test_what_names_no_model_is_a_wrong_use(self):
        for command in ("eval", "chat", "serve"):
            for text in ("", "a@b", "a@2"):
                self.fails(USAGE, "version number|neither a model file", command, text)

    def test_a_mistyped_hub_folder_gets_no_tokens(self):
        for command in (("token", "list", "none"), ("token", "add", "none", "ada/demo"), ("owner", "none", "ada")):
            self.fails(FAILURE, "hub folder 'none' does not exist", "hub", *command)

    def test_limits_of_an_owner_stay_until_they_are_named(self):
        with tempfile.TemporaryDirectory() as hub:
            for arguments, said in ((("--quota-gib", "5"), "at most 5 GiB; nothing is removed"),
                                    (("--keep-days", "3"), "at most 5 GiB; groups, events and claims go after 3 days"),
                                    ((), "at most 5 GiB; groups, events and claims go after 3 days"),
                                    (("--quota-gib", "0"), "no quota; groups, events and claims go after 3 days")):
                self.assertEqual(flotilla("hub", "owner", hub, "ada", *arguments).stdout, f"ada: {said}\n")
            shutil.rmtree(hub + ".state")

    @unittest.skipUnless((BIN / "flotilla-learner").exists(), "built without the learner")
    def test_the_learner_speaks_as_the_program_that_was_started(self):
        self.fails(USAGE, "^flotilla: unknown option", "learn", "hub/ada/demo", "--learner.stps", "3")


if __name__ == "__main__":
    unittest.main()
