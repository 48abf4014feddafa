"""What the grid's group size and headroom, and the learning rate, do to deltas and to the policy.

  record FOLDER OUT       follows a learner that runs in FOLDER with learner.publish_every = learner.checkpoint_every = 1, and
                          keeps of each version the masters and the grid of every eighth row of each matrix; of some
                          versions all masters
  study OUT... --hub HUB  replays the recorded masters through the grid's rule (docs/formats/grid.md) at other settings:
                          changed integers, new scales, bytes, distance of weights; and, on episodes of the run, how far the
                          policy of the grid is from the masters'. Writes bench/out/grid.json and grid.svg, prints a table

Rows are independent: a group lies in one. Vectors have a grid of their own and are left out. At the defaults the replay must
equal the recorded grid, bit for bit.
"""
import argparse
import json
import math
import pathlib
import re
import shutil
import statistics
import struct
import sys
import time

import numpy as np

from measure import machine, write_figures

ROW_EVERY = 8
LIMIT = 127
DEFAULT = (64, 1.0625)
SETTINGS = [(32, 1.0625), DEFAULT, (128, 1.0625), (64, 1.0), (64, 1.125), (64, 1.25), (64, 1.5)]
COUNTED_FROM = 5  # the first version of the medians, as in bench/sync.py


class Checkpoint:
    """docs/formats/checkpoint.md, mapped: its file may be deleted meanwhile."""

    TYPES = {"F32": np.float32, "I8": np.int8, "I16": np.int16, "BF16": np.uint16, "U8": np.uint8}

    def __init__(self, path: pathlib.Path):
        with path.open("rb") as file:
            size = struct.unpack("<Q", file.read(8))[0]
            self.tensors = json.loads(file.read(size))
            self.bytes = np.memmap(file, np.uint8, "r", offset=8 + size)
        metadata = self.tensors.pop("__metadata__")
        self.progress = json.loads(metadata["progress"])
        self.config = json.loads(metadata["model"])

    def read(self, name: str) -> np.ndarray:
        tensor = self.tensors[name]
        return self.bytes[slice(*tensor["data_offsets"])].view(self.TYPES[tensor["dtype"]]).reshape(tensor["shape"])

    def matrices(self) -> dict[str, tuple[int, int]]:
        return {name.removeprefix("version0."): tensor["shape"] for name, tensor in self.tensors.items()
                if name.startswith("version0.") and tensor["dtype"] == "I8"}

    def masters(self) -> dict[str, np.ndarray]:
        return {name.removeprefix("master."): self.read(name) for name in self.tensors if name.startswith("master.")}


def write_whole(checkpoint: Checkpoint, path: pathlib.Path) -> None:
    np.savez(path, config=json.dumps(checkpoint.config), **checkpoint.masters())


def record(arguments) -> int:
    folder, out = arguments.folder, arguments.out
    out.mkdir(parents=True)
    begin, done = None, set()
    while True:
        new = sorted(path for path in (folder / "checkpoints").glob("*.safetensors") if path.name not in done)
        for path in new:
            try:
                checkpoint = Checkpoint(path)
            except FileNotFoundError:
                print(f"{path.name} was gone before it was read", file=sys.stderr)
                continue
            done.add(path.name)
            version = checkpoint.progress["steps"]
            if "version0.model.norm.weight" not in checkpoint.tensors:
                begin = checkpoint  # the masters of version 0, but not yet its grid
                continue
            if begin is not None:
                write_version(begin, "version0", checkpoint.matrices(), out / "00000.npz")
                write_whole(begin, out / "whole-00000.npz")
                begin = None
            if checkpoint.progress["published_steps"] != version:
                continue
            write_version(checkpoint, "grid", checkpoint.matrices(), out / f"{version:05}.npz", grid_of=checkpoint)
            if version == 0 or version in arguments.whole:
                write_whole(checkpoint, out / f"whole-{version:05}.npz")
            print(f"version {version}", flush=True)
            if checkpoint.progress["finished"] or version >= arguments.last:
                shutil.copy(folder / "run.toml", out)
                return 0
        time.sleep(0.2)


def write_version(checkpoint: Checkpoint, grid: str, shapes: dict, path: pathlib.Path, grid_of: Checkpoint | None = None) -> None:
    arrays = {}
    for name, (rows, cols) in shapes.items():
        arrays[f"master.{name}"] = checkpoint.read(f"master.{name}").reshape(rows, cols)[::ROW_EVERY]
        if grid_of is not None:
            arrays[f"q.{name}"] = grid_of.read(f"{grid}.{name}")[::ROW_EVERY]
            arrays[f"scales.{name}"] = grid_of.read(f"{grid}.{name}.scales")[::ROW_EVERY]
    unfinished = path.with_suffix(".tmp.npz")
    np.savez(unfinished, **arrays)
    unfinished.rename(path)


class Grid:
    """One matrix on a grid: docs/formats/grid.md at another group size and headroom."""

    def __init__(self, master: np.ndarray, group: int, headroom: float):
        self.group, self.headroom, self.cols = group, headroom, master.shape[1]
        values = self.groups(master)
        self.scales = self.choose(values)
        self.q = np.rint(values / self.scales[..., None]).astype(np.int8)

    def groups(self, master: np.ndarray) -> np.ndarray:
        missing = -self.cols % self.group  # zeros at the end of a shorter group change nothing
        return np.pad(master, ((0, 0), (0, missing))).reshape(len(master), -1, self.group)

    def choose(self, values: np.ndarray) -> np.ndarray:
        largest = np.abs(values).max(-1).astype(np.float64)
        wanted = largest * self.headroom / LIMIT
        scale = wanted.astype(np.float32)
        scale = np.where(scale < wanted, np.nextafter(scale, np.float32(np.inf)), scale)
        scale = np.maximum(np.where(largest == 0, np.float32(2**-16), scale), np.float32(2**-100))
        bits = (scale.astype(np.float32).view(np.uint32).astype(np.uint64) + 0xFFFF) >> 16  # up to the next bfloat16
        return (bits << 16).astype(np.uint32).view(np.float32)

    def follow(self, master: np.ndarray) -> tuple[int, int]:
        """The next version. Returns the groups with a new scale, and the changes in all others."""
        values = self.groups(master)
        quotient = values / self.scales[..., None]
        outside = ~(np.abs(quotient) < LIMIT + 0.5).all(-1)
        q = np.rint(quotient)
        q[outside] = self.q[outside]
        q = q.astype(np.int8)
        changed = int((q != self.q).sum())
        if outside.any():
            self.scales[outside] = self.choose(values[outside])
            q[outside] = np.rint(values[outside] / self.scales[outside][..., None]).astype(np.int8)
        self.q = q
        return int(outside.sum()), changed

    def weights(self) -> np.ndarray:
        return (self.q * self.scales[..., None]).reshape(len(self.q), -1)[:, : self.cols]

    def equals(self, q: np.ndarray, scales: np.ndarray) -> bool:
        ours = self.q.reshape(len(q), -1)[:, : self.cols]
        return np.array_equal(ours, q) and np.array_equal(self.scales.view(np.uint32) >> 16, scales)


def bound_bits(changed: int, total: int) -> float:
    """n H(p) and a bit a change."""
    if changed == 0:
        return 0.0
    p = changed / total
    return -total * (p * math.log2(p) + (1 - p) * math.log2(1 - p)) + changed


class Run:
    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.paths = sorted(path for path in folder.glob("*.npz") if path.stem.isdigit())
        self.learning_rate = float(re.search(r"\[optimizer\]\s*learning_rate = (\S+)", (folder / "run.toml").read_text())[1])
        numbers = [int(path.stem) for path in self.paths]
        if numbers != list(range(len(numbers))):
            raise SystemExit(f"{folder}: versions are missing: {numbers}")

    def name(self) -> str:
        return f"{self.learning_rate:g}"


def replay(run: Run, settings: list[tuple[int, float]]) -> list[dict]:
    """For each setting the figures of each version."""
    grids: list[dict[str, Grid]] = [{} for _ in settings]
    results = [[] for _ in settings]
    compared = 0
    for path in run.paths:
        version = int(path.stem)
        with np.load(path) as file:
            masters = {key.removeprefix("master."): file[key] for key in file.files if key.startswith("master.")}
            recorded = {name: (file[f"q.{name}"], file[f"scales.{name}"]) for name in masters} if version > 0 else {}
        total = sum(master.size for master in masters.values())
        norm = sum(float(np.square(master, dtype=np.float64).sum()) for master in masters.values())
        for (group, headroom), grid, result in zip(settings, grids, results):
            rescaled = changed = 0
            error = 0.0
            for name, master in masters.items():
                if version == 0:
                    grid[name] = Grid(master, group, headroom)
                else:
                    new, more = grid[name].follow(master)
                    rescaled, changed = rescaled + new, changed + more
                    if (group, headroom) == DEFAULT:
                        if not grid[name].equals(*recorded[name]):
                            raise SystemExit(f"{run.folder}: version {version}, {name}: the replay is not the recorded grid")
                        compared += master.size
                error += float(np.square(grid[name].weights() - master, dtype=np.float64).sum())
            groups = sum(each.scales.size for each in grid.values())
            whole = rescaled * (16 + 8 * group)
            result.append({"version": version, "total": total, "groups": groups, "changed": changed, "rescaled": rescaled,
                           "bound_bytes": ROW_EVERY * (bound_bits(changed, total) + whole) / 8,
                           "rescaled_bytes": ROW_EVERY * whole / 8, "rms": math.sqrt(error / norm)})
        print(f"learning rate {run.name()}: version {version}", file=sys.stderr, flush=True)
    print(f"learning rate {run.name()}: {compared} integers of the recorded grid equal the replay's", file=sys.stderr)
    return [{"learning_rate": run.learning_rate, "group": group, "headroom": headroom, "versions": result,
             "compared": compared if (group, headroom) == DEFAULT else 0}
            for (group, headroom), result in zip(settings, results)]


def episodes_of(hub: pathlib.Path, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Tokens of recorded episodes, and which of them the model wrote; the newest first, one of each group."""
    from safetensors.numpy import load_file
    episodes = []
    for path in sorted((path for path in (hub / "rollouts").rglob("*") if path.is_file()), reverse=True)[:count]:
        group = load_file(path)
        end = group["ends"][0]
        episodes.append((group["tokens"][:end], group["sources"][:end] == 1))
    return episodes


class Policy:
    """The model in fp32, with one set of weights after the other."""

    def __init__(self, config: dict, episodes: list):
        import torch
        import transformers
        self.torch, self.episodes = torch, episodes
        self.model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)).eval()

    def logprobs(self, weights: dict[str, np.ndarray]):
        """Of each episode the distributions before the model's tokens, and those tokens."""
        torch = self.torch
        state = self.model.state_dict()
        for name, values in weights.items():
            state[name].copy_(torch.from_numpy(np.ascontiguousarray(values)).reshape(state[name].shape))
        with torch.no_grad():
            for tokens, by_model in self.episodes:
                ids = torch.from_numpy(tokens.astype(np.int64))
                rows = torch.from_numpy(np.flatnonzero(by_model[1:]))
                yield torch.log_softmax(self.model(ids[None]).logits[0, rows], -1), ids[rows + 1]

    def distance(self, masters: list, weights: dict[str, np.ndarray]) -> dict:
        kl, difference, tokens = 0.0, 0.0, 0
        for (exact, _), (ours, ids) in zip(masters, self.logprobs(weights)):
            kl += float((exact.exp() * (exact - ours)).sum())
            difference += float((exact - ours).gather(1, ids[:, None]).abs().sum())
            tokens += len(ids)
        return {"kl": kl / tokens, "logprob": difference / tokens, "tokens": tokens}


def policy_distances(run: Run, hub: pathlib.Path, settings: list[tuple[int, float]], episodes: int) -> list[dict]:
    """Of the last version with all masters: KL from the policy of the masters to that of the grid, whose scales are those of
    version 0 but where a value has left the range."""
    first, last = (np.load(path) for path in (run.folder / "whole-00000.npz", sorted(run.folder.glob("whole-*.npz"))[-1]))
    config = json.loads(str(last["config"]))
    with np.load(run.paths[0]) as file:
        cols = {key.removeprefix("master."): file[key].shape[1] for key in file.files if key.startswith("master.")}
    masters = {name: last[name] for name in last.files if name != "config"}
    policy = Policy(config, episodes_of(hub, episodes))
    exact = list(policy.logprobs(masters))
    version = int(sorted(run.folder.glob("whole-*.npz"))[-1].stem.split("-")[1])
    results = []
    for group, headroom in settings:
        weights = dict(masters)  # vectors too: their grid has 16 bits
        for name, width in cols.items():
            grid = Grid(first[name].reshape(-1, width), group, headroom)
            grid.follow(masters[name].reshape(-1, width))
            weights[name] = grid.weights()
        results.append({"learning_rate": run.learning_rate, "group": group, "headroom": headroom, "version": version,
                        **policy.distance(exact, weights)})
        print(f"learning rate {run.name()}: group {group}, headroom {headroom}: {results[-1]}", file=sys.stderr, flush=True)
    moved = policy.distance(exact, {name: first[name] for name in masters})
    print(f"learning rate {run.name()}: version 0 is {moved} from version {version}", file=sys.stderr, flush=True)
    return [*results, {"learning_rate": run.learning_rate, "version": version, "training": moved}]


def figures_of(replays: list[dict], distances: list[dict]) -> list[dict]:
    rows = []
    for one in replays:
        counted = [version for version in one["versions"] if version["version"] >= COUNTED_FROM] or one["versions"][1:]
        middle = lambda field: statistics.median(version[field] for version in counted)
        distance = next((d for d in distances if all(d.get(key) == one[key] for key in ("learning_rate", "group", "headroom"))), None)
        rows.append({"figure": f"learning rate {one['learning_rate']:g}, group {one['group']}, headroom {one['headroom']}",
                     "value": middle("bound_bytes"), "unit": "bytes a version: n H(p), a bit a change, and groups with a new scale",
                     "learning_rate": one["learning_rate"], "group": one["group"], "headroom": one["headroom"],
                     "changed": middle("changed") / counted[0]["total"], "rescaled_groups": ROW_EVERY * middle("rescaled"),
                     "rescaled_most": ROW_EVERY * max(version["rescaled"] for version in counted),
                     "rescaled_in_all": ROW_EVERY * sum(version["rescaled"] for version in one["versions"]),
                     "rescaled_bytes": middle("rescaled_bytes"), "int8_bytes": counted[0]["total"] * ROW_EVERY * (1 + 2 / one["group"]),
                     "rms_first": one["versions"][0]["rms"], "rms_last": one["versions"][-1]["rms"], "policy": distance,
                     "row_every": ROW_EVERY, "versions": one["versions"], "machine": machine(), "command": " ".join(["bench/grid.sh", *sys.argv[1:]])})
    return rows


def print_table(rows: list[dict], distances: list[dict]) -> None:
    print(f"{'learning':>8} {'group':>5} {'head':>6} {'int8':>6} | {'changed':>7} {'delta':>8} {'int8 /':>6} | {'new scales':>10} {'at':>5} {'their':>6} |"
          f"{'rms of w, %':>15} | {'KL':>8} {'logprob':>8}")
    print(f"{'rate':>8} {'':>5} {'room':>6} {'MB':>6} | {'%':>7} {'bytes':>8} {'delta':>6} | {'a version':>10} {'most':>5} {'bytes':>6} |"
          f"{'first':>7} {'last':>7} | {'nats':>8} {'differs':>8}")
    for row in rows:
        policy = row["policy"]
        distance = f"{policy['kl']:8.2e} {policy['logprob']:8.4f}" if policy else ""
        print(f"{row['learning_rate']:8g} {row['group']:5} {row['headroom']:6} {row['int8_bytes'] / 1e6:6.1f} | {100 * row['changed']:7.3f} "
              f"{row['value']:8.0f} {row['int8_bytes'] / row['value']:6.0f} | {row['rescaled_groups']:10.0f} {row['rescaled_most']:5} "
              f"{row['rescaled_bytes']:6.0f} |{100 * row['rms_first']:7.3f} {100 * row['rms_last']:7.3f} | {distance}")
    for distance in distances:
        if "training" in distance:
            moved = distance["training"]
            print(f"learning rate {distance['learning_rate']:g}: versions 0 and {distance['version']} are {moved['kl']:.2e} nats apart, logprobs of "
                  f"{moved['tokens']} tokens differ by {moved['logprob']:.4f}: what training did meanwhile")


class Chart:
    """Axes of one panel of an SVG."""

    WIDTH, HEIGHT, LEFT, TOP = 330, 230, 60, 30

    def __init__(self, number: int, title: str, x: tuple[float, float], y: tuple[float, float], x_name: str, y_name: str):
        self.x, self.y = x, y
        self.origin = number * (self.WIDTH + 110) + self.LEFT
        self.parts = [f'<rect x="{self.origin}" y="{self.TOP}" width="{self.WIDTH}" height="{self.HEIGHT}" fill="none" stroke="#999"/>',
                      self.text(self.origin, self.TOP - 10, title, "start"),
                      self.text(self.origin + self.WIDTH / 2, self.TOP + self.HEIGHT + 34, x_name)]
        for share in (0, 0.25, 0.5, 0.75, 1):
            at_x, at_y = x[0] + share * (x[1] - x[0]), y[0] + share * (y[1] - y[0])
            self.parts.append(self.text(self.origin + share * self.WIDTH, self.TOP + self.HEIGHT + 16, f"{at_x:.3g}"))
            self.parts.append(self.text(self.origin - 6, self.TOP + self.HEIGHT * (1 - share) + 4, f"{at_y:.3g}", "end"))
        self.parts.append(self.text(self.origin + 6, self.TOP + 14, y_name, "start", "#666"))

    @staticmethod
    def text(x: float, y: float, text: str, anchor: str = "middle", colour: str = "#222") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{text}</text>'

    def at(self, x: float, y: float) -> tuple[float, float]:
        return (self.origin + (x - self.x[0]) / (self.x[1] - self.x[0]) * self.WIDTH,
                self.TOP + self.HEIGHT * (1 - (y - self.y[0]) / (self.y[1] - self.y[0])))

    def line(self, points: list[tuple[float, float]], colour: str, name: str) -> None:
        where = " ".join(f"{x:.1f},{y:.1f}" for x, y in (self.at(*point) for point in points))
        self.parts.append(f'<polyline points="{where}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        self.parts.append(self.text(*(v - 5 * i for i, v in enumerate(self.at(*points[-1]))), name, "end", colour))

    def dot(self, x: float, y: float, name: str) -> None:
        at_x, at_y = self.at(x, y)
        self.parts.append(f'<circle cx="{at_x:.1f}" cy="{at_y:.1f}" r="3" fill="#1f77b4"/>')
        self.parts.append(self.text(at_x + 6, at_y - 5, name, "start"))


def write_svg(rows: list[dict], path: pathlib.Path) -> None:
    usual = [row for row in rows if (row["group"], row["headroom"]) == DEFAULT]
    megabytes = [[(version["version"], version["bound_bytes"] / 1e6) for version in row["versions"][1:]] for row in usual]
    chart = Chart(0, "Bytes of a version by learning rate", (0, max(line[-1][0] for line in megabytes)),
                  (0, 1.1 * max(y for line in megabytes for _, y in line)), "version", "MB")
    for row, line, colour in zip(usual, megabytes, ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")):
        chart.line(line, colour, f"{row['learning_rate']:g}")
    charts = [chart]
    measured = [row for row in rows if row["policy"] and row["learning_rate"] == 2e-5]
    if measured:
        size = [row["value"] / 1e6 for row in measured]
        kl = [1e3 * row["policy"]["kl"] for row in measured]
        chart = Chart(1, "Group size x headroom, learning rate 2e-5", (0.9 * min(size), 1.15 * max(size)), (0, 1.15 * max(kl)), "MB a version",
                      "KL of grid and masters, 1e-3 nats a token")
        for row, x, y in zip(measured, size, kl):
            chart.dot(x, y, f"{row['group']} x {row['headroom']}")
        charts.append(chart)
    width = charts[-1].origin + Chart.WIDTH + 60
    body = "\n".join(part for chart in charts for part in chart.parts)
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="310" font-family="sans-serif" font-size="11">\n'
                    f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n')


def study(arguments) -> int:
    replays, distances = [], []
    for folder in arguments.out:
        run = Run(folder)
        usual = run.learning_rate == 2e-5
        replays += replay(run, SETTINGS if usual else [DEFAULT])
        hub = arguments.hub and arguments.hub / re.search(r'\[run\]\s*name = "(\S+)"', (folder / "run.toml").read_text())[1]
        if hub:
            distances += policy_distances(run, hub, SETTINGS if usual else [DEFAULT], arguments.episodes)
    rows = figures_of(replays, distances)
    print_table(rows, distances)
    print(f"at the defaults {sum(r['compared'] for r in replays)} integers of the replay and all their scales are those of the recorded grids")
    written = write_figures("grid", rows)
    write_svg(rows, written.with_suffix(".svg"))
    print(f"written: {written}, {written.with_suffix('.svg')}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("record", help="follow a learner")
    command.add_argument("folder", type=pathlib.Path, help="the learner's folder")
    command.add_argument("out", type=pathlib.Path)
    command.add_argument("--last", type=int, default=50, help="the version to end with")
    command.add_argument("--whole", type=lambda text: [int(number) for number in text.split(",")], default=[50],
                         help="versions of which all masters are kept (as of version 0), with commas")
    command.set_defaults(run=record)
    command = commands.add_parser("study", help="replay what was recorded")
    command.add_argument("out", type=pathlib.Path, nargs="+")
    command.add_argument("--hub", type=pathlib.Path, help="the runs' hub, for their episodes; without it the policy is not looked at")
    command.add_argument("--episodes", type=int, default=24)
    command.set_defaults(run=study)
    arguments = parser.parse_args()
    return arguments.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
