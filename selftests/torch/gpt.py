# SPDX-License-Identifier: Apache-2.0
"""A character GPT: attention with a causal mask, AdamW with and without weight decay, gradients
clipped, the learning rate warmed up; several gradients accumulated are one of a larger batch; then it
writes text."""
import math

import torch
from torch import nn
from torch.nn import functional as F

import check

TEXT = "the quick brown fox jumps over the lazy dog; how vexingly quick daft zebras jump. " * 12
CHARS = sorted(set(TEXT))
WIDTH, HEADS, LENGTH = 64, 4, 32


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.join = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (part.view(batch, length, HEADS, -1).transpose(1, 2)
                   for part in self.qkv(self.first(x)).split(WIDTH, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.join(y.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.second(x))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.place = nn.Embedding(len(CHARS), WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, len(CHARS), bias=False)
        self.out.weight = self.token.weight

    def forward(self, x):
        x = self.token(x) + self.place(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x))


def adamw(model, **how):
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() < 2]
    return torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1},
                              {"params": others, "weight_decay": 0}], lr=1e-2, betas=(0.9, 0.95), **how)


def loss_of(model, x, y):
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def batches(count, size, seed):
    chars = torch.tensor([CHARS.index(c) for c in TEXT])
    chosen = torch.Generator().manual_seed(seed)
    for _ in range(count):
        starts = torch.randint(len(chars) - LENGTH - 1, (size,), generator=chosen)
        x = torch.stack([chars[s:s + LENGTH + 1] for s in starts])
        yield x[:, :-1], x[:, 1:]


def accumulated(model):
    """Four gradients, each a quarter, are one of the four batches together."""
    parts = list(batches(4, 4, 1))
    model.zero_grad()
    for x, y in parts:
        (loss_of(model, x.to("cuda"), y.to("cuda")) / 4).backward()
    got = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    x, y = (torch.cat(part).to("cuda") for part in zip(*parts))
    loss_of(model, x, y).backward()
    for (name, p), grad in zip(model.named_parameters(), got):
        check.close(f"the accumulated gradient of {name}", grad, p.grad, 1e-4)
    check.note(*got)


def write(model, text, count):
    x = torch.tensor([[CHARS.index(c) for c in text]], device="cuda")
    with torch.no_grad():
        for _ in range(count):
            x = torch.cat([x, model(x[:, -LENGTH:])[:, -1:].argmax(-1)], 1)
    return "".join(CHARS[i] for i in x[0])


def main():
    check.repeatable()
    check.compare(Gpt, adamw, loss_of, batches(3, 8, 0), 1e-4)
    for how in ({"foreach": False}, {"fused": True}):
        check.compare(Gpt, lambda m: adamw(m, **how), loss_of, batches(2, 8, 0), 1e-4)

    torch.manual_seed(0)
    model = Gpt().to("cuda")
    accumulated(model)
    optimiser = adamw(model)
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda i: min(1, (i + 1) / 10) * (0.55 + 0.45 * math.cos(math.pi * i / 90)))
    for x, y in batches(90, 8, 2):
        loss = loss_of(model, x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        rate.step()
        check.note(loss, norm)
    check.expect(loss.item() < 1, f"the loss is {loss.item():.2f} at the end")
    text = write(model, "the quick", 60)
    print(text)
    check.expect(len(text) == 69, f"it writes {len(text)} characters")
    check.note(*model.parameters())
    check.finish()


if __name__ == "__main__":
    main()
