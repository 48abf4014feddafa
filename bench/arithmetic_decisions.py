"""What each choice of the arithmetic costs in accuracy, simulated in PyTorch: docs/design/arithmetic.md, "Decisions".

  arithmetic_decisions.py MODEL [POSITIONS]   MODEL: a Hugging Face folder (flotilla model import FILE.gguf FOLDER)

Teacher-forced on definitions of WordNet. Each row rounds one thing (weights, activations, keys and values) and compares
the log-probabilities of the tokens that follow with those without that rounding.
"""

import pathlib
import sys

import torch
import torch.nn.functional as F
import transformers
import transformers.models.llama.modeling_llama as llama

HEADROOM = 1.0625  # kScaleHeadroom


def texts():
    lines = pathlib.Path("/usr/share/wordnet/data.noun").read_text(encoding="latin-1").splitlines()
    glosses = [line.split(" | ", 1)[1].strip() for line in lines if " | " in line]
    for first in range(1, len(glosses), 997):
        yield " ".join(glosses[first : first + 6])[:400]


def groups(x, size):
    return F.pad(x, (0, -x.shape[-1] % size)).unflatten(-1, (-1, size))


def rounded(x, size, limit, scale_of):
    """x on a grid of integers up to limit, one scale for `size` columns."""
    parts = groups(x, size)
    scale = scale_of(parts.abs().amax(-1, keepdim=True).clamp_min(2**-100) / limit)
    return ((parts / scale).round().clamp(-limit, limit) * scale).flatten(-2)[..., : x.shape[-1]]


class Simulation:
    def __init__(self, folder, positions):
        torch.manual_seed(0)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        self.linears = [m for m in self.model.modules() if isinstance(m, torch.nn.Linear)]
        self.weights = [m.weight.data.clone() for m in self.linears]
        self.activations = None  # (group, limit)
        self.kv = None           # a dtype
        for module in self.linears:
            module.register_forward_pre_hook(self.round_activations)
        exact = llama.eager_attention_forward
        llama.ALL_ATTENTION_FUNCTIONS["eager"] = llama.eager_attention_forward = (
            lambda module, q, k, v, mask, **more: exact(module, q, *(x if self.kv is None else x.to(self.kv).float()
                                                                      for x in (k, v)), mask, **more))
        self.prompts = []
        for text in texts():
            if sum(p.shape[1] - 1 for p in self.prompts) >= positions:
                break
            self.prompts.append(tokenizer(text, return_tensors="pt")["input_ids"])

    def round_activations(self, module, inputs):
        if self.activations is not None:
            return (rounded(inputs[0], *self.activations, lambda scale: scale),)

    def set_weights(self, group):
        for module, weight in zip(self.linears, self.weights):
            module.weight.data = weight if group is None else rounded(
                weight, group, 127, lambda scale: (scale * HEADROOM).to(torch.bfloat16).float())

    @torch.no_grad()
    def run(self):
        return [torch.log_softmax(self.model(p).logits[0, :-1], -1) for p in self.prompts]


def row(name, exact, other, prompts):
    following = [p[0, 1:, None] for p in prompts]
    a = torch.cat([x.gather(1, t) for x, t in zip(exact, following)])
    b = torch.cat([x.gather(1, t) for x, t in zip(other, following)])
    greedy = torch.cat([x.argmax(-1) == y.argmax(-1) for x, y in zip(exact, other)]).float().mean()
    past = ((a.exp() - b.exp()).abs() > 0.2).float().mean()
    print(f"| {name} | {(a - b).abs().mean():.4f} | {(a - b).abs().max():.2f} | {100 * greedy:.1f} % | {100 * past:.2f} % |", flush=True)


def main():
    simulation = Simulation(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1000)
    print(f"| {sum(p.shape[1] - 1 for p in simulation.prompts)} positions | mean | largest | same greedy token | gap > 0.2 |")
    print("|---|---|---|---|---|")

    def report(name, exact):
        row(name, exact, simulation.run(), simulation.prompts)

    master = simulation.run()
    for group in (32, 64, 128):
        simulation.set_weights(group)
        report(f"weights int8, scale groups of {group}, against fp32", master)
    simulation.set_weights(64)
    grid = simulation.run()
    for group, limit, name in ((32, 127, "one byte"), (64, 127, "one byte"), (128, 127, "one byte"), (64, 32512, "two bytes")):
        simulation.activations = (group, limit)
        report(f"activations of {name}, groups of {group}", grid)
    simulation.activations = None
    for kv in (torch.bfloat16, torch.float16):
        simulation.kv = kv
        report(f"keys and values in {str(kv)[6:]}", grid)
    for limit, name in ((127, "one byte"), (32512, "two bytes")):
        for kv in (torch.bfloat16, torch.float16):
            simulation.activations, simulation.kv = (64, limit), kv
            report(f"activations of {name}, keys and values in {str(kv)[6:]}", grid)


if __name__ == "__main__":
    main()
