# SPDX-License-Identifier: Apache-2.0
"""char_gpt.py - the character GPT of selftests/torch under DistributedDataParallel, trained until it is ended; prints each step

char_gpt.py [--exchange]

--exchange: a step is the all-reduces of as many bytes as there are gradients, in buckets of DDP's sizes, and no more."""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[1:1] = [os.path.join(HERE, "../../torch/dist"), os.path.join(HERE, "../../torch")]

import ranks  # noqa: E402  (before torch)
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import gpt  # noqa: E402

WIDTH, HEADS, BATCH = 480, 8, 1         # 5.6 M parameters, 85 MiB with gradients and AdamW's state
FIRST, BUCKET = 1 << 18, 25 << 18       # floats in DDP's first bucket, and in others


def exchange(parameters):
    left, sizes = sum(p.numel() for p in parameters), []
    while left:
        sizes.append(min(left, BUCKET if sizes else FIRST))
        left -= sizes[-1]
    buckets = [torch.ones(n, device=ranks.device()) for n in sizes]
    while True:
        for work in [dist.all_reduce(b, dist.ReduceOp.AVG, async_op=True) for b in buckets]:
            work.wait()
        yield


def train(model):
    optimiser = gpt.adamw(model)
    model = DistributedDataParallel(model)
    text = torch.tensor([gpt.CHARS.index(c) for c in gpt.TEXT], device=ranks.device())
    at = 37 * dist.get_rank()
    while True:
        batch = torch.stack([text[at + i:at + i + gpt.LENGTH + 1] for i in range(BATCH)])
        optimiser.zero_grad()
        loss = gpt.loss_of(model, batch[:, :-1], batch[:, 1:])
        loss.backward()
        optimiser.step()
        at = (at + 101) % (len(text) - gpt.LENGTH - BATCH)
        yield


def main():
    gpt.WIDTH, gpt.HEADS = WIDTH, HEADS
    rank, _ = ranks.start()
    torch.manual_seed(1)
    model = gpt.Gpt().to(ranks.device())
    steps = exchange(list(model.parameters())) if sys.argv[1:] == ["--exchange"] else train(model)
    for n, _ in enumerate(steps):
        torch.cuda.synchronize()
        if not rank:
            print(f"step {n}", flush=True)


main()
