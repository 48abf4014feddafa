"""Writes a GGUF file with the sizes of Qwen2.5-0.5B, random weights and a vocabulary of made-up tokens, for llama.cpp."""
import pathlib

import gguf
import numpy

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCABULARY, CONTEXT = 24, 896, 14, 2, 64, 4864, 151936, 32768


def byte_alphabet() -> list[str]:
    """The printable stand-ins for the 256 bytes that byte-level BPE uses."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]


def vocabulary() -> tuple[list[str], list[str]]:
    """Tokens and merges: bytes first, then pairs and triples of them, and one special token at the end."""
    alphabet = byte_alphabet()
    tokens, merges = list(alphabet), []
    for first in alphabet:
        for second in alphabet:
            merges.append(f"{first} {second}")
            tokens.append(first + second)
    pairs = tokens[256:]
    for pair in pairs:
        if len(tokens) == VOCABULARY - 1:
            break
        merges.append(f"{pair} {alphabet[0]}")
        tokens.append(pair + alphabet[0])
    for pair in pairs:
        if len(tokens) == VOCABULARY - 1:
            break
        merges.append(f"{pair} {alphabet[1]}")
        tokens.append(pair + alphabet[1])
    return [*tokens, "<|endoftext|>"], merges


def write_qwen(path: pathlib.Path) -> None:
    random = numpy.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    tokens, merges = vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * (VOCABULARY - 1) + [gguf.TokenType.CONTROL])
    writer.add_token_merges(merges)
    writer.add_eos_token_id(VOCABULARY - 1)
    writer.add_bos_token_id(VOCABULARY - 1)

    def matrix(name: str, rows: int, cols: int) -> None:
        values = random.standard_normal((rows, cols), dtype=numpy.float32) * numpy.float32(0.02)
        writer.add_tensor(name, gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0), raw_dtype=gguf.GGMLQuantizationType.Q8_0)

    def vector(name: str, size: int, mean: float) -> None:
        writer.add_tensor(name, (mean + 0.02 * random.standard_normal(size)).astype(numpy.float32))

    matrix("token_embd.weight", VOCABULARY, HIDDEN)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        vector(f"{block}.attn_norm.weight", HIDDEN, 1)
        vector(f"{block}.ffn_norm.weight", HIDDEN, 1)
        for part, rows in (("attn_q", HEADS * HEAD_DIM), ("attn_k", KV_HEADS * HEAD_DIM), ("attn_v", KV_HEADS * HEAD_DIM)):
            matrix(f"{block}.{part}.weight", rows, HIDDEN)
            vector(f"{block}.{part}.bias", rows, 0)
        matrix(f"{block}.attn_output.weight", HIDDEN, HEADS * HEAD_DIM)
        matrix(f"{block}.ffn_gate.weight", FFN, HIDDEN)
        matrix(f"{block}.ffn_up.weight", FFN, HIDDEN)
        matrix(f"{block}.ffn_down.weight", HIDDEN, FFN)
    vector("output_norm.weight", HIDDEN, 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
