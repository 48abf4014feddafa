"""Reads deltas of codec 2 as docs/formats/delta.md says, and nothing else: the oracle of src/sync/delta_oracle_test.cc.

    delta_oracle.py TENSORS BEFORE DELTA AFTER [MANIFEST]

TENSORS is a JSON list of [name, "matrix" or "vector", rows, cols] in the order of the model. BEFORE and AFTER are anchors.
Fails unless the delta makes of the one the state and the history of the other, with the digests that MANIFEST says. The
checksum at the end of the delta is not looked at.
"""

import hashlib
import json
import math
import struct
import sys

import numpy as np
from safetensors.numpy import load_file

HORIZON = 1 << 26
GROUP = 64


def expect(condition, what):
    if not condition:
        sys.exit(f"delta_oracle: {what}")


# Parts and regions: (tensor, first row, row behind the last).

def parts_of(tensors):
    batches, integers = [], 0
    for index, (_, _, rows, cols) in enumerate(tensors):
        if not batches or integers + rows * cols > 1 << 23:
            batches.append([])
            integers = 0
        batches[-1].append(index)
        integers += rows * cols
    parts = []
    for batch in batches:
        room = 0
        for index in batch:
            _, _, rows, cols = tensors[index]
            together = max(1, (1 << 22) // cols)
            for first in range(0, rows, together):
                last = min(rows, first + together)
                size = (last - first) * cols
                if size > room:
                    parts.append([])
                    room = 1 << 22
                parts[-1].append((index, first, last))
                room -= size
    return parts


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


# Range coding.

class Reader:
    def __init__(self, data):
        self.data, self.at, self.range = data, 8, (1 << 64) - 1
        self.code = int.from_bytes(data[:8].ljust(8, b"\0"), "big")

    def number(self, bits):
        self.unit = self.range >> bits
        return min(self.code // self.unit, (1 << bits) - 1)

    def take(self, low, size):
        self.code -= self.unit * low
        self.range = self.unit * size
        while self.range < 1 << 32:
            self.code = self.code << 32 | int.from_bytes(self.data[self.at:self.at + 4].ljust(4, b"\0"), "big")
            self.range <<= 32
            self.at += 4

    def raw(self, bits):
        value = self.number(bits)
        self.take(value, 1)
        return value


class Bit:
    def __init__(self):
        self.m, self.seen = 1 << 27, 0

    def read(self, reader):
        p = min(max(self.m >> 12, 1), 65535)
        bit = reader.number(16) < p
        reader.take(0, p) if bit else reader.take(p, 65536 - p)
        away = ((1 << 28) if bit else 0) - self.m
        self.m += abs(away) // (self.seen + 2) * (1 if away > 0 else -1)
        self.seen = min(self.seen + 1, 1022)
        return bit


class Model:
    def __init__(self):
        self.again = [Bit() for _ in range(16)]
        self.same = [Bit() for _ in range(16)]
        self.up = Bit()
        self.longer = [Bit() for _ in range(16)]

    def length(self, reader):
        n = 0
        while n < 16 and self.longer[n].read(reader):
            n += 1
        return (1 << n) + (reader.raw(n) if n else 0)


# The survival S.

def survival_table():
    root = 1 << 61
    for _ in range(11):
        root = math.isqrt(root << 62)
    table, value = [], 1 << 62
    for _ in range(2048):
        table.append((value + (1 << 31)) >> 32)
        value = value * root >> 62
    return table + [1 << 29]


TABLE = survival_table()


def survival(time):
    octave, step, rest = time >> 24, (time >> 13) % 2048, time % 8192
    if octave > 30:
        return 0
    return ((TABLE[step] << 13) - (TABLE[step] - TABLE[step + 1]) * rest) >> (13 + octave)


def last_with(wanted):
    """The latest time up to the horizon whose survival is at least `wanted`."""
    low, high = 0, HORIZON
    while low < high:
        middle = (low + high + 1) // 2
        if survival(middle) >= wanted:
            low = middle
        else:
            high = middle - 1
    return low


# One region: history is a list of (position, age, up).

def read_changes(reader, model, rows, cols, scales, history):
    size = rows * cols
    changes = {}
    for position, age, up in history:
        if model.again[age].read(reader):
            same = model.same[age].read(reader)
            length = model.length(reader)
            changes[position] = length if same == bool(up) else -length
    code = reader.raw(13)
    if code == 0:
        return changes
    rate = (256 + code % 256) << (code // 256)

    free = np.ones(size, bool)
    free[[position for position, _, _ in history]] = False
    groups = -(-cols // GROUP)
    at = np.arange(size, dtype=np.int64)
    group_of = at // cols * groups + at % cols // GROUP
    counts = np.bincount(group_of[free], minlength=rows * groups)
    ordinary = int(scales.astype(np.int64).sum()) // len(scales)
    d = np.clip(ordinary - scales.astype(np.int64), -512, 512) + 512
    weight = ((128 + d % 128) << (d // 128)) // 8
    t = np.array([min(max(int(w) * rate, 1 << 16), 1 << 41) for w in weight], dtype=np.int64)
    group_begin = np.concatenate([[0], np.cumsum(counts * t >> 16)])
    positions = at[free]
    group = group_of[free]
    k = np.arange(len(positions)) - np.concatenate([[0], np.cumsum(counts)])[group]
    end = group_begin[group] + ((k + 1) * t[group] >> 16)
    total = int(group_begin[-1])

    origin = 0
    while True:
        wanted = (1 << 30) - reader.number(30)
        after = int(np.searchsorted(end, origin + last_with(wanted), side="right"))
        if wanted <= survival(HORIZON) and total > origin + HORIZON:
            reader.take((1 << 30) - survival(HORIZON), survival(HORIZON))
            origin += HORIZON
            continue
        if total <= origin + HORIZON and wanted <= survival(total - origin):
            reader.take((1 << 30) - survival(total - origin), survival(total - origin))
            return changes
        begin = int(group_begin[group[after]] + (k[after] * t[group[after]] >> 16))
        a, b = survival(max(0, begin - origin)), survival(int(end[after]) - origin)
        expect(b < wanted <= a, "no change here")
        reader.take((1 << 30) - a, a - b)
        origin = int(end[after])
        up = model.up.read(reader)
        length = model.length(reader)
        changes[int(positions[after])] = length if up else -length


def grow_old(history, changes, size):
    counts = [len(changes)] + [0] * 15  # of the ages 1 to 16
    for _, age, _ in history:
        counts[age] += 1
    oldest, remembered = 0, counts[0]
    while oldest < 15 and remembered <= size // 32:
        oldest += 1
        remembered += counts[oldest]
    new = [(position, 1, int(step > 0)) for position, step in changes.items() if oldest >= 1]
    old = [(position, age + 1, up) for position, age, up in history if age < oldest and position not in changes]
    return sorted(new + old)


def bf16(bits):
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


def read_region(reader, bits, matrices, vectors, tensor, q, scales, rows, history):
    _, kind, _, cols = tensor
    if kind == "vector":
        if bits["region"].read(reader):
            high = reader.raw(16)
            scales[0] = np.array([high << 16 | reader.raw(16)], dtype="<u4").view("<f4")[0]
            q[:] = [reader.raw(16) - 32767 for _ in range(cols)]
            return []
        equal = np.full(-(-cols // GROUP), 0x3F80, np.uint16)
        changes = read_changes(reader, vectors, 1, cols, equal, history)
    else:
        groups = -(-cols // GROUP)
        if bits["region"].read(reader):
            whole = set()
            for group in range(rows * groups):
                if not bits["group"].read(reader):
                    continue
                scales[group] = reader.raw(16)
                begin = group // groups * cols + group % groups * GROUP
                end = begin + min(GROUP, cols - group % groups * GROUP)
                q[begin:end] = [reader.raw(8) - 127 for _ in range(end - begin)]
                whole.update(range(begin, end))
            history = [entry for entry in history if entry[0] not in whole]
        changes = read_changes(reader, matrices, rows, cols, scales, history)
    at = list(changes)
    moved = q[at].astype(np.int64) + list(changes.values())
    expect(np.abs(moved).max(initial=0) <= (32767 if kind == "vector" else 127), "an integer leaves the grid")
    q[at] = moved
    return grow_old(history, changes, rows * cols)


def apply(tensors, state, histories, delta):
    expect(delta[:8] == b"FDLT\2\0\0\0", "not a delta of codec 2")
    parts = parts_of(tensors)
    at, lengths = 8, []
    for _ in parts:
        length, at = varint(delta, at)
        lengths.append(length)
    region = 0
    for part, length in zip(parts, lengths):
        reader = Reader(delta[at:at + length])
        at += length
        bits, matrices, vectors = {"region": Bit(), "group": Bit()}, Model(), Model()
        for index, first, last in part:
            _, kind, _, cols = tensors[index]
            q, scales = state[index]
            if kind == "matrix":
                groups = -(-cols // GROUP)
                q, scales = q[first * cols:last * cols], scales[first * groups:last * groups]
            histories[region] = read_region(reader, bits, matrices, vectors, tensors[index], q, scales, last - first,
                                            histories[region])
            region += 1
        expect(reader.at >= length, "bytes are left in a part")
    expect(at == len(delta) - 8, "bytes are left")


# Anchors and digests, as anchor.md and grid.md say.

def read_anchor(path, tensors):
    file = load_file(path)
    state = []
    for name, kind, _, _ in tensors:
        scales = file[name + (".scales" if kind == "matrix" else ".scale")]
        state.append((file[name].reshape(-1).copy(), scales.reshape(-1).copy()))
    histories, at = [], 0
    if "flotilla.history" not in file:
        return state, [[] for part in parts_of(tensors) for _ in part]
    for count in file["flotilla.history.counts"]:
        entries = file["flotilla.history"][at:at + int(count)].tolist()
        histories.append([(e & (1 << 27) - 1, e >> 27 & 15, e >> 31) for e in entries])
        at += int(count)
    return state, histories


def history_digest(histories):
    digest = hashlib.sha256(b"flotilla delta history 1")
    for history in histories:
        digest.update(struct.pack("<I", len(history)))
        digest.update(b"".join(struct.pack("<I", p | age << 27 | up << 31) for p, age, up in history))
    return digest.hexdigest()


def state_digest(tensors, state):
    def framed(text):
        return struct.pack("<Q", len(text)) + text.encode()

    def root(digests):
        if len(digests) == 1:
            return hashlib.sha256(b"\0" + digests[0]).digest()
        k = 1 << (len(digests) - 1).bit_length() - 1
        return hashlib.sha256(b"\1" + root(digests[:k]) + root(digests[k:])).digest()

    digests = []
    for (name, kind, rows, cols), (q, scales) in zip(tensors, state):
        head = framed("flotilla grid tensor 1") + framed(name) + struct.pack("<BQQ", kind == "vector", rows, cols)
        digests.append(hashlib.sha256(head + q.tobytes() + scales.tobytes()).digest())
    return root(digests).hex()


def main(tensors_path, before_path, delta_path, after_path, manifest_path=None):
    with open(tensors_path) as file:
        tensors = json.load(file)
    with open(delta_path, "rb") as file:
        delta = file.read()
    state, histories = read_anchor(before_path, tensors)
    expected, expected_histories = read_anchor(after_path, tensors)
    apply(tensors, state, histories, delta)
    for (name, _, _, _), ours, theirs in zip(tensors, state, expected):
        expect(np.array_equal(ours[0], theirs[0]), f"other integers in {name}")
        expect(np.array_equal(ours[1], theirs[1]), f"other scales in {name}")
    expect(histories == expected_histories, "another history")
    if manifest_path:
        with open(manifest_path) as file:
            manifest = json.load(file)
        expect(manifest["state"] == state_digest(tensors, state), "another digest of the state")
        expect(manifest["history"] == history_digest(histories), "another digest of the history")


if __name__ == "__main__":
    main(*sys.argv[1:])
