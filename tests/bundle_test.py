"""tools/bundle.py puts the terms of what is compiled into the program beside those of the libraries."""
import gzip
import pathlib
import shutil
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import bundle  # noqa: E402


@unittest.skipUnless(shutil.which("dpkg-query"), "the terms are those of Debian's packages")
class Licenses(unittest.TestCase):
    def test_those_of_header_libraries_are_there(self):
        packages = bundle.packages_of([])
        self.assertEqual(len(set(packages)), len(bundle.HEADERS))
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch) / "LICENSES"
            bundle.write_licenses(folder, pathlib.Path("/"), packages)
            boost = next(package for package in packages if package.startswith("libboost"))
            self.assertIn("Boost Software License", gzip.decompress((folder / f"{boost}.gz").read_bytes()).decode())
            for package in packages:
                self.assertIn(f"({package})", (folder / "SOURCES").read_text())


if __name__ == "__main__":
    unittest.main()
