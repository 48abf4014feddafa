#!/usr/bin/env python3
"""Makes a folder that runs `flotilla work` on another glibc Linux without installing anything, and an archive of it.

    bundle.py BUILD ARCH OUT [--root FOLDER]

BUILD is a CMake build folder with the program flotilla; OUT gets flotilla-VERSION-linux-ARCH/ and a .tar.xz of it. The
libraries that the program needs are copied from this system, or from the root of another one into which Debian's packages
were unpacked, all but glibc's own. Each part's licence comes from the Debian package that it is from.
"""

import argparse
import gzip
import pathlib
import re
import shutil
import subprocess
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
SIZE_MAX = 20_000_000
COPYRIGHT_PLAIN_MAX = 256_000  # that of Boost, all of it, has 2 MB
# Every Linux of this kind has them, and they must fit its kernel and each other.
GLIBC = re.compile(r"^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|anl|mvec))\.so\.\d+$")
# Compiled into the program: no library tells of them. Their packages are found by a header, for those that
# tools/packages.txt names may only depend on the ones with the files and their terms.
HEADERS = ["nlohmann/json.hpp", "toml++/toml.h", "CLI/CLI.hpp", "spdlog/spdlog.h", "boost/version.hpp"]
COMMON_LICENSES = pathlib.Path("/usr/share/common-licenses")

README = """Flotilla {version} for Linux on {arch}
{line}

A worker: it pulls the weights of a run from its hub, generates groups of episodes and uploads them. Nothing needs to be
installed; this folder can lie anywhere. It needs a Linux with glibc {glibc} or later (ldd --version says yours).

    bin/flotilla version                       says what it is and what it computes
    bin/flotilla bench limits                  what this machine can do
    bin/flotilla work HUB/OWNER/RUN --learner sha256:...

The last one is the command that the run's owner gives out: where the hub is, and the fingerprint of the learner's key,
which the worker checks. `bin/flotilla work --help` has the rest, the limits that you can set included. Ctrl-C ends the
worker after the group that it is at; everything that it keeps is in ~/.cache/flotilla, ~/.local/state/flotilla and
~/.config/flotilla.

lib/ holds the libraries that the program uses, as Debian built them. LICENSES/ has the terms of each part, and
LICENSES/SOURCES the exact packages: `apt-get source NAME=VERSION` gets what they were built from. Flotilla itself is
under Apache-2.0; Xapian is under the GPL, version 2 or later, so who passes this folder on does so under the GPL, version 3.
"""


def fail(message: str) -> None:
    sys.exit(f"bundle: {message}")


def run(*command) -> str:
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if result.returncode != 0:
        fail(f"{' '.join(map(str, command))}: {result.stderr.strip()}")
    return result.stdout


def needed(file: pathlib.Path) -> list[str]:
    return re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "--dynamic", "--wide", file))


def libraries_of(program: pathlib.Path, folders: list[pathlib.Path]) -> dict[str, pathlib.Path]:
    """What a program needs, what that needs, and so on."""
    found: dict[str, pathlib.Path] = {}
    waiting = [program]
    while waiting:
        for name in needed(waiting.pop()):
            if name in found or GLIBC.match(name):
                continue
            file = next((folder / name for folder in folders if (folder / name).exists()), None)
            if file is None:
                fail(f"library {name} is in none of: {', '.join(map(str, folders))}")
            found[name] = file
            waiting.append(found[name])
    return found


def least_glibc(files: list[pathlib.Path]) -> str:
    """The newest version of glibc's symbols that any file asks for."""
    versions = {tuple(map(int, version.split("."))) for file in files
                for version in re.findall(r"Name: GLIBC_(\d+(?:\.\d+)+)", run("readelf", "--version-info", "--wide", file))}
    return ".".join(map(str, max(versions)))


def package_of(pattern: str) -> str:
    """By this system's packages: those of another architecture have the same names."""
    return run("dpkg-query", "--search", pattern).split(":")[0]


def packages_of(libraries: list[str]) -> list[str]:
    return [package_of(f"*/lib/*-linux-gnu/{library}") for library in libraries] + [
        package_of(f"/usr/include/{header}") for header in HEADERS]


def source_of(package: str, root: pathlib.Path) -> str:
    if root == pathlib.Path("/"):
        text = run("dpkg-query", "--show", "--showformat", "${source:Package}=${source:Version}\n", package)
        return text.splitlines()[0]
    with gzip.open(root / "usr/share/doc" / package / "changelog.Debian.gz", "rt", encoding="utf-8") as changelog:
        source, version = re.match(r"(\S+) \((\S+)\)", changelog.readline()).groups()
    return f"{source}={version}"


def write_licenses(folder: pathlib.Path, root: pathlib.Path, packages: list[str]) -> None:
    folder.mkdir()
    shutil.copy(REPOSITORY / "LICENSE", folder / "flotilla")
    common = set()
    sources = []
    for package in sorted(set(packages)):
        text = (root / "usr/share/doc" / package / "copyright").read_text(encoding="utf-8")
        if len(text) > COPYRIGHT_PLAIN_MAX:
            (folder / f"{package}.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
        else:
            (folder / package).write_text(text, encoding="utf-8")
        common |= {found.rstrip(".") for found in re.findall(r"/usr/share/common-licenses/([A-Za-z0-9.+-]+)", text)}
        sources.append(f"{source_of(package, root)} ({package})\n")
    for name in sorted(common):
        if (COMMON_LICENSES / name).exists():
            shutil.copy(COMMON_LICENSES / name, folder / f"common-{name}")
    (folder / "SOURCES").write_text("".join(sources))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("arch")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path("/"))
    options = parser.parse_args()

    cache = (options.build / "CMakeCache.txt").read_text()
    version = re.search(r"^CMAKE_PROJECT_VERSION:STATIC=(.*)$", cache, re.M).group(1)
    folder = options.out / f"flotilla-{version}-linux-{options.arch}"
    shutil.rmtree(folder, ignore_errors=True)
    run("cmake", "--install", options.build, "--component", "program", "--prefix", folder, "--strip")
    program = folder / "bin/flotilla"

    # /lib is a folder of its own where packages were only unpacked.
    libraries = libraries_of(program, [options.root / f"{place}/{options.arch}-linux-gnu" for place in ("usr/lib", "lib")])
    (folder / "lib").mkdir()
    for name, file in libraries.items():
        shutil.copy(file, folder / "lib" / name)
    files = [program, *(folder / "lib").iterdir()]
    glibc = least_glibc(files)
    write_licenses(folder / "LICENSES", options.root, packages_of([*libraries]))
    title = f"Flotilla {version} for Linux on {options.arch}"
    (folder / "README").write_text(README.format(version=version, arch=options.arch, line="=" * len(title), glibc=glibc))

    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    archive = folder.with_name(folder.name + ".tar.xz")
    run("tar", "--create", "--xz", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0", "--file", archive,
        "--directory", options.out, folder.name)
    print(f"{folder}: {size / 1e6:.1f} MB, {len(libraries)} libraries, needs glibc {glibc} or later")
    print(f"{archive}: {archive.stat().st_size / 1e6:.1f} MB")
    if size > SIZE_MAX:
        fail(f"{size} bytes are more than {SIZE_MAX}")


if __name__ == "__main__":
    main()
