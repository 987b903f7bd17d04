# SPDX-License-Identifier: Apache-2.0
"""A DistributedDataParallel training whose ranks torchrun starts, inside of the job, where it watches them; and
gloo beside NCCL in one process group. The first that is run is torchrun itself: launched.py [RANKS]"""
import os
import sys

import ranks
from ranks import check

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


def trained(rank, n, steps=3, before=lambda step: None, after=lambda step, loss: None):
    """Steps, against one process's on the CPU that has all batches; what is done before and after each of them."""
    random = torch.Generator().manual_seed(3)
    x, y = torch.randn(steps, n, 4, 8, generator=random), torch.randn(steps, n, 4, 2, generator=random)
    make = lambda: nn.Sequential(nn.Linear(8, 30), nn.Tanh(), nn.Linear(30, 2))  # noqa: E731
    torch.manual_seed(1)
    alone = make()
    torch.manual_seed(1)
    model = DistributedDataParallel(make().to(ranks.device()), device_ids=[ranks.device()])
    both = [(alone, x.flatten(1, 2), y.flatten(1, 2)), (model, x[:, rank].cuda(), y[:, rank].cuda())]
    for m, inputs, wanted in both:
        optimiser = torch.optim.SGD(m.parameters(), lr=0.1)
        for step in range(steps):
            if m is model:
                before(step)
            optimiser.zero_grad()
            loss = F.mse_loss(m(inputs[step]), wanted[step])
            loss.backward()
            optimiser.step()
            if m is model:
                after(step, loss)
    for (name, p), q in zip(model.module.named_parameters(), alone.parameters()):
        check.close(name, p, q, 1e-4)
        ranks.alike(name, p)
        check.note(p)


def both_backends(rank, n):
    """Tensors of the CPU go by gloo, those of devices by NCCL."""
    for device in "cpu", ranks.device():
        x = torch.arange(5.0, device=device) + rank
        dist.all_reduce(x)
        check.same(f"all_reduce on {device}", x, torch.arange(5.0) * n + n * (n - 1) / 2)
        works = [dist.all_reduce(torch.full((1000,), float(i), device=device), async_op=True) for i in range(4)]
        for work in works:
            work.wait()
        check.note(x)
    gloo = dist.new_group(backend="gloo", timeout=ranks.PATIENCE)
    dist.monitored_barrier(gloo, timeout=ranks.PATIENCE)
    x = torch.full((3,), rank + 1.0)
    dist.all_reduce(x, dist.ReduceOp.MAX, gloo)
    check.same("all_reduce of a group over gloo", x, torch.full((3,), float(n)))


def main():
    if "LOCAL_RANK" not in os.environ:
        from torch.distributed.run import main as torchrun

        n = sys.argv[1] if len(sys.argv) > 1 else "2"
        torchrun(["--nproc-per-node", n, "--standalone", os.path.abspath(__file__)])
        return
    rank, n = ranks.start("cpu:gloo,cuda:nccl")
    trained(rank, n)
    both_backends(rank, n)
    ranks.finish()


if __name__ == "__main__":
    main()
