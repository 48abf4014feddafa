"""What packages that we did not write find in model files. Each command writes JSON that a test compares with ours.

  gguf FILE OUT                  gguf: {tensor: SHA-256 of its elements as fp32}
  transformers-gguf FILE OUT     transformers: the same by Hugging Face name, and the sizes of the model
  transformers-folder DIR OUT    transformers: the same of a folder, and some encoded texts
  safetensors-read FILE OUT      safetensors: {tensor: [dtype, shape, SHA-256 of its bytes]}
  safetensors-write FILE OUT     writes a file with every dtype, and the same of it
"""

import hashlib
import json
import os
import sys

TEXTS = ["Hello, world!", "  12345 größer\n\n\tdef f(x):", "<|im_start|>user\nhi<|im_end|>"]


def sha(array):
    return hashlib.sha256(memoryview(array).cast("B")).hexdigest()


def gguf_digests(path):
    import gguf
    import numpy

    digests = {}
    for tensor in gguf.GGUFReader(path).tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        digests[tensor.name] = sha(numpy.ascontiguousarray(values, dtype=numpy.float32))
    return digests


def transformers_gguf(path):
    import torch
    import transformers
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    # from_pretrained(gguf_file=...) would do the same, but asks for one more package.
    config = transformers.AutoConfig.from_pretrained(os.path.dirname(path), gguf_file=os.path.basename(path))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    return {"tensors": state_digests(config, tensors), "config": settings(config)}


def transformers_folder(folder):
    import torch
    import transformers

    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return {
        "tensors": state_digests(model.config, model.state_dict()),
        "config": settings(model.config),
        "class": type(model).__name__,
        "eos": tokenizer.eos_token_id,
        "chat_template": tokenizer.chat_template,
        "texts": TEXTS,
        "ids": [tokenizer(text)["input_ids"] for text in TEXTS],
    }


def state_digests(config, tensors):
    # A tied head is listed by transformers, but is the embedding.
    skip = {"lm_head.weight"} if config.tie_word_embeddings else set()
    return {name: sha(value.float().contiguous().numpy()) for name, value in tensors.items() if name not in skip}


def settings(config):
    rope = getattr(config, "rope_parameters", None) or {"rope_theta": config.rope_theta}
    return {
        "layers": config.num_hidden_layers,
        "hidden": config.hidden_size,
        "heads": config.num_attention_heads,
        "kv_heads": config.num_key_value_heads,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        "ffn": config.intermediate_size,
        "vocabulary": config.vocab_size,
        "context": config.max_position_embeddings,
        "norm_epsilon": config.rms_norm_eps,
        "rope_theta": rope["rope_theta"],
        "tied_embeddings": config.tie_word_embeddings,
    }


def safetensors_read(path):
    import safetensors
    import safetensors.torch

    found = {}
    with open(path, "rb") as file:
        for name, tensor in safetensors.deserialize(file.read()):
            found[name] = [tensor["dtype"], tensor["shape"], sha(bytes(tensor["data"]))]
    with safetensors.safe_open(path, "pt") as file:
        metadata = file.metadata()
        for name in file.keys():
            # torch views the data in place, so this fails for a tensor that is not aligned.
            assert list(file.get_tensor(name).shape) == found[name][1]
    return {"tensors": found, "metadata": metadata}


def safetensors_write(path):
    import safetensors.torch
    import torch

    dtypes = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
              torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8, torch.bool]
    generator = torch.Generator().manual_seed(1)
    tensors = {}
    for i, dtype in enumerate(dtypes):
        values = torch.randint(0, 100, (3, i + 1), generator=generator)
        tensors[f"tensor.{i}"] = values.to(dtype)
    tensors["scalar"] = torch.tensor(1.5)
    tensors["empty"] = torch.zeros(0, 4)
    safetensors.torch.save_file(tensors, path, {"made by": "safetensors", "ü": "ö"})
    return safetensors_read(path)


COMMANDS = {
    "gguf": gguf_digests,
    "transformers-gguf": transformers_gguf,
    "transformers-folder": transformers_folder,
    "safetensors-read": safetensors_read,
    "safetensors-write": safetensors_write,
}

if __name__ == "__main__":
    command, path, out = sys.argv[1:]
    result = COMMANDS[command](path)
    with open(out, "w") as file:
        json.dump(result, file)
