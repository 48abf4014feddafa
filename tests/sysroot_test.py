"""tools/run/sysroot_aarch64.sh deletes a folder only when it made it."""
import os
import pathlib
import platform
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Debian's programs and the package manager, which fetch one empty package.
STUBS = {
    "apt-get": 'for word; do case "$word" in Dir::Cache=*) touch "${word#*=}/archives/one.deb";; esac; done',
    "dpkg-deb": 'touch "$3/unpacked"',
}


def is_debian() -> bool:
    try:
        return platform.freedesktop_os_release()["ID"] == "debian"
    except OSError:  # a system that does not say what it is
        return False


@unittest.skipUnless(is_debian(), "the packages are Debian's")
class Sysroot(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.sysroot = self.folder / "sysroot"
        tools = self.folder / "tree/tools/run"
        tools.mkdir(parents=True)
        shutil.copy(ROOT / "tools/packages.txt", tools.parent)
        for script in ("common.sh", "sysroot_aarch64.sh"):
            shutil.copy(ROOT / "tools/run" / script, tools)
        self.program(tools / "setup.sh", "true")
        (self.folder / "bin").mkdir()
        for name, script in STUBS.items():
            self.program(self.folder / "bin" / name, script)

    def program(self, path: pathlib.Path, script: str) -> None:
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)

    def make(self) -> subprocess.CompletedProcess:
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        return subprocess.run([self.folder / "tree/tools/run/sysroot_aarch64.sh"], capture_output=True, text=True,
                              env=os.environ | {"FLOTILLA_SYSROOT": str(self.sysroot), "PATH": path})

    def names(self) -> list[str]:
        return sorted(path.name.split("-")[0] for path in self.sysroot.iterdir())

    def test_a_folder_of_someone_else_stays_as_it_is(self):
        self.sysroot.mkdir()
        (self.sysroot / "thesis").write_text("years of work")
        made = self.make()
        self.assertNotEqual(made.returncode, 0)
        self.assertIn("was not made here", made.stderr)
        self.assertEqual(self.names(), ["thesis"])

    def test_an_empty_folder_and_a_missing_one_are_filled(self):
        for exists in (True, False):
            if exists:
                self.sysroot.mkdir()
            made = self.make()
            self.assertEqual(made.returncode, 0, made.stderr)
            self.assertEqual(self.names(), [".flotilla", "unpacked"])
            shutil.rmtree(self.sysroot)

    def test_its_own_of_other_packages_is_made_again_and_the_right_one_kept(self):
        self.sysroot.mkdir()
        for name in (".flotilla-0123456789abcdef", "old"):
            (self.sysroot / name).touch()
        self.assertEqual(self.make().returncode, 0)
        self.assertEqual(self.names(), [".flotilla", "unpacked"])
        (self.sysroot / "unpacked").unlink()
        self.assertEqual(self.make().returncode, 0)
        self.assertEqual(self.names(), [".flotilla"], "nothing was fetched again")


if __name__ == "__main__":
    unittest.main()
