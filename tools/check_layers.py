#!/usr/bin/env python3
"""Fails on an include that points up the layers, on one between modules of one layer, and on torch outside src/learn/torch."""
import pathlib
import re
import sys

# base < telemetry < config, store, model < sync, engine, env < rollout, benchmark, embed < serve, hub, learn < mesh, pipeline < cli < apps
LAYERS = [
    ["base"], ["telemetry"], ["config", "store", "model"], ["sync", "engine", "env"], ["rollout", "benchmark", "embed"],
    ["serve", "hub", "learn"], ["mesh", "pipeline"], ["cli"],
]
RANK = {module: rank for rank, modules in enumerate(LAYERS) for module in modules}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
TORCH = re.compile(r"^(torch|ATen|c10|caffe2)/")


def problems_of(path: pathlib.Path, root: pathlib.Path) -> list[str]:
    parts = path.relative_to(root).parts
    in_src = parts[0] == "src"
    module = parts[1] if in_src else None
    if in_src and module not in RANK:
        return [f"{path}: module '{module}' has no place in tools/check_layers.py"]
    problems = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        target = match.group(1)
        if TORCH.match(target) and parts[:3] != ("src", "learn", "torch"):
            problems.append(f"{path}:{number}: {target} may be included in src/learn/torch only")
        other = target.split("/")[0]
        if not in_src or "/" not in target or other not in RANK or other == module:
            continue
        if RANK[other] >= RANK[module]:
            problems.append(f"{path}:{number}: {module} must not include {other}, which is not below it")
    return problems


def main() -> int:
    root = pathlib.Path(__file__).resolve().parent.parent
    files = [path for folder in ("src", "apps") for path in sorted((root / folder).rglob("*")) if path.suffix in {".h", ".cc"}]
    problems = [problem for path in files for problem in problems_of(path, root)]
    print("\n".join(problems) if problems else f"layers: {len(files)} files, every include points down")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
