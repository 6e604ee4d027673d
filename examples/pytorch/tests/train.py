"""Trains a small transformer and prints one line of JSON: losses, a hash of the weights, the time of a step.

    python train.py --steps 200 --attention ordo            # deterministic
    python train.py --attention sdpa                        # PyTorch's default, not deterministic
    python train.py --attention sdpa --deterministic        # PyTorch's deterministic mode

--seqlen 8192 --head-dim 128 --heads 16 --layers 4 --steps 20 are the sizes of the figures in the README.
"""

import argparse
import contextlib
import hashlib
import json
import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
import torch.nn as nn
import torch.nn.functional as F

from ordo_attention import replace_sdpa


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        batch, seqlen, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, seqlen, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, seqlen, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, vocabulary, width, heads, layers):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--attention", choices=["ordo", "sdpa"], default="ordo")
    parser.add_argument("--deterministic", action="store_true", help="PyTorch's deterministic mode; always on with ordo")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--seqlen", type=int, default=512)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=512)
    args = parser.parse_args()
    torch.use_deterministic_algorithms(args.deterministic or args.attention == "ordo")
    torch.manual_seed(0)
    model = Model(args.vocabulary, args.heads * args.head_dim, args.heads, args.layers).to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    generator = torch.Generator("cuda").manual_seed(1)
    losses, times = [], []
    with replace_sdpa() if args.attention == "ordo" else contextlib.nullcontext():
        for _ in range(args.steps):
            # Sequences of few tokens that repeat with a period of 16, so that there is something to learn.
            period = torch.randint(args.vocabulary // 32, (args.batch, 16), device="cuda", generator=generator)
            tokens = period.repeat(1, args.seqlen // 16 + 1)[:, : args.seqlen + 1]
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            end.record()
            losses.append(loss.detach())
            times.append((start, end))
    torch.cuda.synchronize()
    steps = sorted(a.elapsed_time(b) for a, b in times[len(times) // 4 :])
    sha = hashlib.sha256()
    for parameter in model.parameters():
        sha.update(parameter.detach().contiguous().view(torch.uint8).cpu().numpy().tobytes())
    print(json.dumps({"attention": args.attention, "deterministic": torch.are_deterministic_algorithms_enabled(), "first_loss": losses[0].item(),
                      "last_loss": losses[-1].item(), "weights": sha.hexdigest(), "step_ms": round(steps[len(steps) // 2], 3)}))


if __name__ == "__main__":
    main()
