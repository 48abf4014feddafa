"""What Hugging Face's tokenizers and transformers make of text: the oracle of src/model/tokenizer_oracle_test.cc.

    tokenizer_oracle.py make GGUF FOLDER      writes tokenizer.json files, strings with their ids, chats with their ids
    tokenizer_oracle.py check JSON STRINGS    loads our tokenizer.json with `tokenizers`; fails where an id of every fifth
                                              string differs

Files of strings: u32 count, then for each u32 bytes, UTF-8, u32 ids, i32 each. Little-endian.
"""

import array
import json
import os
import random
import struct
import sys
import sysconfig
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

SPACES = ["\t", "\n", "\v", "\f", "\r", " ", "\r\n", "\x85", "\xa0", "\u1680", "\u180e", "\u2003", "\u2028", "\u2029",
          "\u200b", "\u202f", "\u205f", "\u3000", "\ufeff"]
EMOJI = ["\U0001f600", "\U0001f469\u200d\U0001f4bb", "\U0001f1e9\U0001f1ea", "\U0001f44d\U0001f3fd", "\u2764\ufe0f",
         "1\ufe0f\u20e3",
         "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"]
PIECES = ["'s", "'S", "'t", "'ll", "'ve", "'re", "'d", "'m", "''", "don't", "12", "3.14", "\u0665\u0666", "\u00b2", "\u2167", "\u4e09",
          "#!", "...", "<|im_start|", "im_end|>", "caf\u00e9", "cafe\u0301", "na\u00efve", "_x", "-", "/*", "*/", "{", "}",
          "\x00", "\x01", "\x04", "\x7f", "A", "zebra"]


def every_code_point(_):
    points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    separators = ["", " ", "a", "1", "!", "\n ", "'"]
    for number, start in enumerate(range(0, len(points), 80)):
        separator = separators[number % len(separators)]
        yield separator.join(map(chr, points[start:start + 80]))


def scripts(rng):
    while True:
        text = ""
        for _ in range(rng.randint(1, 4)):
            limit = rng.choice([0x250, 0x2000, 0x10000, 0x20000, 0x33500])
            start = rng.randrange(limit)
            for _ in range(rng.randint(1, 12)):
                point = start + rng.randrange(96)
                if not 0xD800 <= point < 0xE000:
                    text += chr(point)
            text += rng.choice(["", " ", "  ", ", ", "\n", "7", "'s "])
        yield text


def mixtures(rng):
    alphabets = [SPACES, EMOJI, PIECES, PIECES + SPACES, SPACES + EMOJI + PIECES, [" ", "\n", "a", "1", "."]]
    while True:
        alphabet = rng.choice(alphabets)
        yield "".join(rng.choice(alphabet) * rng.choice([1, 1, 1, 2, 5]) for _ in range(rng.randint(1, 16)))


def code(rng):
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    while True:
        lines = rng.choice(files).read_text(encoding="utf-8", errors="ignore").splitlines(keepends=True)
        start = rng.randrange(len(lines)) if lines else 0
        yield from ("".join(lines[i:i + rng.randint(1, 4)]) for i in range(start, min(start + 200, len(lines)), 2))


def random_unicode(rng):
    while True:
        points = (rng.randrange(rng.choice([0x80, 0x800, 0x10000, 0x110000]))
                  for _ in range(rng.randint(0, 24)))
        yield "".join(chr(c) for c in points if not 0xD800 <= c < 0xE000)


def long_runs(rng):
    units = ["a", " ", "\n", "=", "0", "ab", "Aa", "\u00e9", "\u6f22", "\U0001f600", " a", "\t", "_-",
             "aaaaaaaab", "\r\n", "'s", "\u0301"]
    for unit in units:
        for length in (100, 1_000, 10_000):
            yield unit * length
            yield "x" + unit * length + " y"
            yield "".join(rng.choice([unit, unit.upper()]) for _ in range(length))
    yield "a" * 1_000_000
    yield "".join(rng.choice("abcdefgh") for _ in range(200_000))


def strings(count):
    rng = random.Random(20240607)
    texts = list(every_code_point(rng)) + list(long_runs(rng))
    sources = [scripts(rng), mixtures(rng), code(rng), random_unicode(rng)]
    while len(texts) < count:
        texts += [next(source) for source in sources]
    return texts[:count]


def with_special_tokens(rng, count, special):
    sources = [scripts(rng), mixtures(rng)]
    return ["".join(rng.choice([next(rng.choice(sources)), rng.choice(special), rng.choice(special)[:-1], " "])
                    for _ in range(rng.randint(1, 8))) for _ in range(count)]


def write(path, texts, ids):
    with open(path, "wb") as file:
        file.write(struct.pack("<I", len(texts)))
        for text, values in zip(texts, ids):
            data = text.encode()
            file.write(struct.pack("<I", len(data)) + data + struct.pack("<I", len(values)))
            array.array("i", values).tofile(file)


def read(path):
    data = Path(path).read_bytes()
    count, = struct.unpack_from("<I", data)
    at, texts, ids = 4, [], []
    for _ in range(count):
        size, = struct.unpack_from("<I", data, at)
        texts.append(data[at + 4:at + 4 + size].decode())
        at += 4 + size
        length, = struct.unpack_from("<I", data, at)
        ids.append(list(struct.unpack_from(f"<{length}i", data, at + 4)))
        at += 4 + 4 * length
    return texts, ids


def encode(tokenizer, texts, special):
    tokenizer.encode_special_tokens = not special
    ids = []
    for start in range(0, len(texts), 5000):
        ids += [e.ids for e in tokenizer.encode_batch_fast(texts[start:start + 5000], add_special_tokens=False)]
    return ids


def chats(rng, count):
    sources = [scripts(rng), mixtures(rng), code(rng)]
    for _ in range(count):
        roles = rng.choice([["user"], ["system", "user"], ["user", "assistant", "user"], ["assistant"], ["system"],
                            ["system", "user", "assistant", "user", "assistant"], ["user", "system"]])
        messages = [{"role": role, "content": rng.choice(["", next(rng.choice(sources))])} for role in roles]
        yield messages, rng.random() < 0.5


def write_chats(path, tokenizer, rng):
    conversations, ids = [], []
    for messages, open_turn in chats(rng, 1_000):
        # A real template, run by transformers; a chat without special tokens in its contents.
        result = tokenizer.apply_chat_template(messages, add_generation_prompt=open_turn, return_dict=False)
        conversations.append(json.dumps({"messages": messages, "open": open_turn}))
        ids.append(list(result))
    write(path, conversations, ids)


def make(gguf, folder):
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    folder = Path(folder)
    path = Path(gguf)
    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    backend = tokenizer.backend_tokenizer
    rng = random.Random(7)
    special = [token.content for token in backend.get_added_tokens_decoder().values()]

    # transformers does not read `tokenizer.ggml.pre`: what it makes of the file is a GPT-2 tokenizer.
    backend.save(str(folder / "gpt2.json"))
    texts = strings(100_000)
    write(folder / "gpt2.bin", texts[::4], encode(backend, texts[::4], special=False))

    # The tokenizer.json that SmolLM2 was published with.
    backend.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    backend.save(str(folder / "smollm.json"))
    (folder / "smollm.jinja").write_text(tokenizer.chat_template)
    write(folder / "smollm.bin", texts, encode(backend, texts, special=False))
    texts = with_special_tokens(rng, 3_000, special)
    write(folder / "special.bin", texts, encode(backend, texts, special=True))

    backend.encode_special_tokens = False
    write_chats(folder / "chat.bin", tokenizer, rng)


def check(path, strings_path):
    from tokenizers import Tokenizer

    texts, expected = (values[::5] for values in read(strings_path))
    got = encode(Tokenizer.from_file(path), texts, special=False)
    for text, a, b in zip(texts, got, expected):
        if a != b:
            sys.exit(f"ids of {text[:80]!r} differ: {a[:20]} {b[:20]}")
    print(len(texts), "equal")


if __name__ == "__main__":
    {"make": make, "check": check}[sys.argv[1]](*sys.argv[2:])
