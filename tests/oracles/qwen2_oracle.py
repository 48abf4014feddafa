"""Small Qwen2 models and tokenizers made by transformers, tokenizers and gguf, with what these find in them.

    qwen2_oracle.py tokenizer FOLDER    a tokenizer.json, its chat template, strings and chats with their ids, in the
                                        format of tokenizer_oracle.py
    qwen2_oracle.py models FOLDER       tied/ and untied/: model folders as transformers saves them; tied.gguf and
                                        untied.gguf: the same written with gguf; expected.json: what they hold

The tokenizer has Qwen2's normalizer, pattern and special tokens; its merges are learned from WordNet and from text of
many scripts. The models' embeddings have more rows than the tokenizer has tokens.
"""

import json
import os
import random
import sys
import unicodedata
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

import tokenizer_oracle as oracle

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|box_start|>", "<|box_end|>"]
ADDED = ["<tool_call>", "</tool_call>", "<|fim_prefix|>"]
# The same structure as the published one: with tools the opening of the system message is a piece of its own.
TEMPLATE = (
    "{%- if tools %}\n    {{- '<|im_start|>system\\n' }}\n    {{- messages[0]['content'] }}\n    {{- '<|im_end|>\\n' }}\n"
    "{%- else %}\n    {%- if messages[0]['role'] == 'system' %}\n"
    "        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}\n    {%- else %}\n"
    "        {{- '<|im_start|>system\\nYou are Qwen, and helpful.<|im_end|>\\n' }}\n    {%- endif %}\n{%- endif %}\n"
    "{%- for message in messages %}\n    {%- if not (loop.first and message.role == 'system') %}\n"
    "        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n    {%- endif %}\n"
    "{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n")


def corpus(rng):
    lines = Path("/usr/share/wordnet/data.noun").read_text(encoding="latin-1").splitlines()
    yield from (line.split(" | ", 1)[1] for line in lines[:20_000] if " | " in line)
    for source in (oracle.scripts(rng), oracle.mixtures(rng), oracle.code(rng)):
        yield from (next(source) for _ in range(3_000))


def make_tokenizer(size):
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers
    from transformers import Qwen2Tokenizer

    learned = Qwen2Tokenizer().backend_tokenizer
    learned.model = models.BPE()
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, special_tokens=[],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    learned.train_from_iterator(corpus(random.Random(1)), trainer)
    model = json.loads(learned.to_str())["model"]
    vocabulary = {token: id for id, token in enumerate(t for t in model["vocab"] if t not in SPECIAL)}
    tokenizer = Qwen2Tokenizer(vocab=vocabulary, merges=[tuple(m) for m in model["merges"]], eos_token="<|im_end|>")
    tokenizer.add_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in ADDED])
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def in_contexts():
    """Every character among marks that it may combine with or be reordered among, and what decomposes taken apart."""
    points = [c for c in [*range(0x33500), *range(0xE0000, 0xE0200)] if not 0xD800 <= c < 0xE000]
    for start in range(0, len(points), 40):
        yield "".join(f"e\u0301{chr(c)}\u0323\u0345" for c in points[start:start + 40])
        yield " ".join(f"{chr(c)}\u0301" for c in points[start:start + 40])
    for start in range(0, len(points), 200):
        apart = [unicodedata.normalize("NFD", chr(c)) for c in points[start:start + 200]]
        if any(len(text) > 1 for text in apart):
            yield " ".join(text for text in apart if len(text) > 1)


def marks(rng):
    combining = [chr(c) for c in range(0x110000) if unicodedata.combining(chr(c))]
    jamo = [chr(c) for c in [*range(0x1100, 0x1113), *range(0x1161, 0x1176), *range(0x11A7, 0x11C3), 0xAC00, 0xAC1C, 0xD7A3]]
    bases = list("aeouAEOUn <>=1.\u017f\u1e9b\u3046\u30ab\u0915\u09c7\u0bc6\u1025\U000114b9") + ["\u212b", "\u1e69", "\uf900"]
    while True:
        pool = rng.choice([combining + bases, combining[:80] + bases, jamo, jamo + combining[:20], bases])
        yield "".join(rng.choice(pool) for _ in range(rng.randint(1, 20)))


def contractions(rng):
    pieces = ["'s", "'S", "'\u017f", "'t", "'T", "'re", "'Re", "'VE", "'m", "'LL", "'lL", "'D", "'", "\u2019s", "x", " ", "I", "12",
              "\r\n", "\n", "\r", "\t", "  ", "\u00a0", "\u3000", "!", "...", "(", "\u0130", "\u212a"]
    while True:
        yield "".join(rng.choice(pieces) for _ in range(rng.randint(1, 14)))


def strings(count):
    rng = random.Random(5)
    texts = list(in_contexts()) + list(oracle.long_runs(rng)) + list(oracle.every_code_point(rng))[::7]
    texts += ["e" + "\u0301\u0323\u0345" * 50_000, "\u1100\u1161\u11a8" * 20_000, " " * 50_000 + "\n" * 3 + "x",
              ("  " * 50 + "\r\n") * 2_000, "\n" + " " * 100_000 + "x"]
    sources = [marks(rng), contractions(rng), oracle.mixtures(rng), oracle.scripts(rng), oracle.code(rng),
               oracle.random_unicode(rng)]
    while len(texts) < count:
        texts += [next(source) for source in sources]
    return texts[:count]


def make_tokenizer_files(folder):
    tokenizer = make_tokenizer(6_000)
    backend = tokenizer.backend_tokenizer
    backend.save(str(folder / "qwen2.json"))
    (folder / "qwen2.jinja").write_text(tokenizer.chat_template)
    texts = strings(40_000)
    oracle.write(folder / "qwen2.bin", texts, oracle.encode(backend, texts, special=False))
    rng = random.Random(7)
    texts = oracle.with_special_tokens(rng, 3_000, SPECIAL + ADDED + ["\u0338", "\u0301"])
    oracle.write(folder / "special.bin", texts, oracle.encode(backend, texts, special=True))
    backend.encode_special_tokens = False
    oracle.write_chats(folder / "chat.bin", tokenizer, rng)


def make_model(tokenizer, tied):
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(3 + tied)
    rows = (len(tokenizer) + 127) // 128 * 128
    assert rows > len(tokenizer)
    model = Qwen2ForCausalLM(Qwen2Config(
        vocab_size=rows, hidden_size=128, intermediate_size=192, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2048, rms_norm_eps=1e-6, tie_word_embeddings=tied,
        initializer_range=0.12, rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        eos_token_id=tokenizer.eos_token_id))
    with torch.no_grad():  # biases and norms begin as zeros and ones, which would prove nothing
        for name, value in model.named_parameters():
            if name.endswith(".bias"):
                value.normal_(0, 0.7)
            elif "norm" in name:
                value.uniform_(0.6, 1.4)
    return model


def write_gguf(path, model, tokenizer):
    import gguf

    config = model.config
    writer = gguf.GGUFWriter(str(path), "qwen2")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(1_000_000.0)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)

    # As llama.cpp's converter does: rows without a token get a name and the type "unused".
    tokens, types = [], []
    whole = tokenizer.backend_tokenizer.get_added_tokens_decoder()
    for id in range(config.vocab_size):
        token = tokenizer.convert_ids_to_tokens(id) if id < len(tokenizer) else f"[PAD{id}]"
        kind = gguf.TokenType.UNUSED if id >= len(tokenizer) else gguf.TokenType.NORMAL
        if id in whole:
            kind = gguf.TokenType.CONTROL if whole[id].special else gguf.TokenType.USER_DEFINED
        tokens.append(token)
        types.append(kind)
    model_part = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(merge) for merge in model_part["merges"]])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_add_bos_token(False)
    writer.add_chat_template(tokenizer.chat_template)

    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, config.num_hidden_layers)
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), value.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_models(folder):
    import model_oracle

    tokenizer = make_tokenizer(1_200)
    expected = {}
    for name, tied in (("tied", True), ("untied", False)):
        model = make_model(tokenizer, tied)
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
        write_gguf(folder / f"{name}.gguf", model, tokenizer)
        expected[name] = {"tensors": model_oracle.state_digests(model.config, model.state_dict()),
                          "config": model_oracle.settings(model.config), "tokens": len(tokenizer),
                          "eos": tokenizer.eos_token_id, "pad": tokenizer.pad_token_id,
                          "chat_template": tokenizer.chat_template}
    (folder / "expected.json").write_text(json.dumps(expected))


if __name__ == "__main__":
    command, target = sys.argv[1:]
    {"tokenizer": make_tokenizer_files, "models": make_models}[command](Path(target))
