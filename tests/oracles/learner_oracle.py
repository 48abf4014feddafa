"""What transformers computes from a model and episodes, for a test that compares it with the learner.

  logprobs MODEL IN OUT   OUT: JSON, for each episode the log-probability of every token after its prompt
  gradient MODEL IN OUT   OUT: safetensors, the gradient of the mean of -log-probability over all those tokens

MODEL is a Hugging Face folder; IN is JSON: [{"tokens": [...], "prompt": how many of them}, ...]. All in fp32.
"""

import json
import sys

import torch
import transformers


def logprobs(model, episode):
    tokens = torch.tensor(episode["tokens"])
    table = torch.log_softmax(model(tokens[None]).logits[0], -1)
    first = episode["prompt"]
    return table[first - 1 : -1].gather(1, tokens[first:, None])[:, 0]


def main():
    command, path, source, out = sys.argv[1:]
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with open(source) as file:
        episodes = json.load(file)
    if command == "logprobs":
        with torch.no_grad():
            result = [logprobs(model, episode).tolist() for episode in episodes]
        with open(out, "w") as file:
            json.dump(result, file)
        return
    assert command == "gradient", command
    (-torch.cat([logprobs(model, episode) for episode in episodes]).mean()).backward()
    import safetensors.torch

    tied = model.config.tie_word_embeddings
    gradients = {name: p.grad.contiguous() for name, p in model.named_parameters() if not (tied and name == "lm_head.weight")}
    safetensors.torch.save_file(gradients, out)


if __name__ == "__main__":
    main()
