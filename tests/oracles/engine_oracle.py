"""What transformers computes in fp32 from a model folder, for a test that compares it with the engine.

  MODEL OUT   OUT: JSON, for each of 50 texts of mixed length: its tokens, and for every position but the last the
              log-probability of the token that follows and the most likely token

The texts are definitions of WordNet, put together to between 4 and about 200 tokens.
"""

import json
import pathlib
import sys

import torch
import transformers

PROMPTS = 50


def texts():
    lines = pathlib.Path("/usr/share/wordnet/data.noun").read_text(encoding="latin-1").splitlines()
    glosses = [line.split(" | ", 1)[1].strip() for line in lines if " | " in line]
    for number in range(PROMPTS):
        first = 1 + number * 1500
        yield " ".join(glosses[first : first + 1 + number % 8])[: 20 + 16 * number]


def main():
    folder, out = sys.argv[1:]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompts = []
    with torch.no_grad():
        for text in texts():
            tokens = torch.tensor(tokenizer.encode(text))
            table = torch.log_softmax(model(tokens[None]).logits[0], -1)[:-1]
            prompts.append({"tokens": tokens.tolist(), "logprobs": table.gather(1, tokens[1:, None])[:, 0].tolist(),
                            "most_likely": table.argmax(-1).tolist()})
    pathlib.Path(out).write_text(json.dumps(prompts))


if __name__ == "__main__":
    main()
