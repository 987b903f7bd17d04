# SPDX-License-Identifier: Apache-2.0
"""PyTorch's CUDA graphs with NCCL's operations: all-reduces on NCCL's stream and beside other work, a
broadcast; DistributedDataParallel, whose step is captured whole, against one process that has all batches."""
import os

import torch
import torch.distributed as dist
from torch import nn

rank = int(os.environ["RANK"])
ranks = int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
side = torch.cuda.Stream()


def beside(work, times):
    """What PyTorch asks for before a capture: the same work on another stream."""
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(times):
            work()
    torch.cuda.current_stream().wait_stream(side)


def operations():
    x = torch.full((1000,), float(rank + 1), device="cuda")
    y = torch.zeros(1000, device="cuda")

    def work():
        t = x * 2
        reduced = dist.all_reduce(t, async_op=True)
        u = x + rank
        reduced.wait()
        y.copy_(t + u)
        dist.broadcast(y, 0)

    beside(work, 3)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    for k in range(20):
        x.fill_(rank + 1 + k)
        graph.replay()
        want = 2 * sum(r + 1 + k for r in range(ranks)) + 1 + k
        assert (y == want).all().item(), (k, y[0].item(), want)


def training():
    torch.manual_seed(0)
    model, alone = nn.Linear(16, 4).cuda(), nn.Linear(16, 4).cuda()
    alone.load_state_dict(model.state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.zeros(8, 16, device="cuda")
    with torch.cuda.stream(side):
        parallel = nn.parallel.DistributedDataParallel(model, device_ids=[rank])

    def backward():
        optimiser.zero_grad(set_to_none=True)
        parallel(x).square().mean().backward()

    beside(backward, 12)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        backward()
        optimiser.step()
    reference = torch.optim.SGD(alone.parameters(), lr=0.1)
    chosen = torch.Generator().manual_seed(7)
    for _ in range(10):
        batch = torch.randn(ranks, 8, 16, generator=chosen)
        x.copy_(batch[rank])
        graph.replay()
        reference.zero_grad()
        sum(alone(batch[r].cuda()).square().mean() / ranks for r in range(ranks)).backward()
        reference.step()
    for a, b in zip(model.parameters(), alone.parameters()):
        assert torch.allclose(a, b, atol=1e-6), (a - b).abs().max().item()
    return [float(p.sum()).hex() for p in model.parameters()]


operations()
sums = training()
torch.cuda.synchronize()
dist.destroy_process_group()
print("PASS", *sums, flush=True)
