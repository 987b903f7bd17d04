# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel, with several buckets that are reduced while backward runs: losses, gradients and
buffers against one process's on the CPU, which has all ranks' batches; gradients of the first step against
the sum of the ranks' own, to the bit. Gradients as views of buckets, accumulation without synchronisation,
parameters that a rank does not use, a static graph, SyncBatchNorm, ranks whose data end earlier, a hook that
compresses."""
import copy

import ranks
from ranks import check

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH, TOLERANCE = 4, 6, 1e-4


class Net(nn.Module):
    """Whether a batch goes through `left` depends on its data."""

    def __init__(self, norm):
        super().__init__()
        self.first = nn.Linear(12, 40, bias=not norm)   # whose gradient in front of a BatchNorm is 0
        self.norm = nn.BatchNorm1d(40) if norm else nn.LayerNorm(40)
        self.left, self.right = nn.Linear(40, 40), nn.Linear(40, 40)
        self.last = nn.Linear(40, 5)

    def forward(self, x, both=True):
        x = F.gelu(self.norm(self.first(x)))
        y = self.right(x)
        return self.last(y + self.left(x) if both else y)


def batches(n, steps=STEPS):
    """Of each step, the batches of all ranks."""
    random = torch.Generator().manual_seed(5)
    return [[(torch.randn(BATCH, 12, generator=random), torch.randint(0, 5, (BATCH,), generator=random))
             for _ in range(n)] for _ in range(steps)]


def made(norm=False):
    torch.manual_seed(1)
    return Net(norm)


def loss_of(model, x, y, both=True):
    return F.cross_entropy(model(x, both), y)


def alone(model, steps, both):
    """On the CPU, as one process would train: losses, gradients of the first step."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses, first = [], None
    for step in steps:
        optimiser.zero_grad()
        if all(both):           # one batch: a norm of all ranks sees all of it
            loss = loss_of(model, torch.cat([x for x, _ in step]), torch.cat([y for _, y in step]))
        else:
            loss = sum(loss_of(model, x, y, b) for (x, y), b in zip(step, both)) / len(step)
        loss.backward()
        first = first or {name: p.grad.clone() for name, p in model.named_parameters()}
        optimiser.step()
        losses.append(loss.detach())
    return torch.stack(losses), first


def own_gradients(model, x, y, both):
    """What this rank alone has."""
    model = copy.deepcopy(model)
    loss_of(model, x, y, both).backward()
    return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters()}


def together(what, rank, n, both=None, norm=False, **options):
    """Trains as all ranks, and compares."""
    both = both or [True] * n
    steps = batches(n)
    reference = made(norm)
    want, first = alone(reference, steps, both)
    model = made(norm).to(ranks.device())
    if norm:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    own = None if norm else own_gradients(model, *(t.cuda() for t in steps[0][rank]), both[rank])
    model = DistributedDataParallel(model, device_ids=[ranks.device()], bucket_cap_mb=0.004, **options)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for i, step in enumerate(steps):
        x, y = (t.cuda() for t in step[rank])
        optimiser.zero_grad()
        loss = loss_of(model, x, y, both[rank])
        loss.backward()
        for name, p in model.module.named_parameters():
            if i:
                break
            check.close(f"{what}: the gradient of {name}", p.grad, first[name], TOLERANCE)
            ranks.alike(f"{what}: the gradient of {name}", p.grad)
            check.note(p.grad)
            if own:
                parts = [part * (1 / n) for part in ranks.gathered(own[name])]
                check.same(f"{what}: the gradient of {name}, and the tree's", p.grad, ranks.tree(parts))
        optimiser.step()
        losses.append(loss.detach())
    losses = torch.stack(losses)
    dist.all_reduce(losses, dist.ReduceOp.AVG)
    check.close(f"{what}: the losses", losses, want, 10 * TOLERANCE)
    for (name, got), wanted in zip(model.module.state_dict().items(), reference.state_dict().values()):
        check.close(f"{what}: {name}", got, wanted, 100 * TOLERANCE)
        ranks.alike(f"{what}: {name}", got)
    check.note(losses, *model.module.state_dict().values())


def accumulated(rank, n):
    """Two batches without synchronisation, a third one with."""
    steps = batches(n, 3)
    model = made().to(ranks.device())
    model = DistributedDataParallel(model, device_ids=[ranks.device()], bucket_cap_mb=0.004)
    with model.no_sync():
        for step in steps[:2]:
            loss_of(model, *(t.cuda() for t in step[rank])).backward()
    loss_of(model, *(t.cuda() for t in steps[2][rank])).backward()
    reference = made()
    for step in steps:
        for x, y in step:
            (loss_of(reference, x, y) / n).backward()
    for (name, p), q in zip(model.module.named_parameters(), reference.parameters()):
        check.close(f"accumulated: the gradient of {name}", p.grad, q.grad, TOLERANCE)
        ranks.alike(f"accumulated: the gradient of {name}", p.grad)
        check.note(p.grad)


def uneven(rank, n):
    """The data of a rank end earlier than those of the next."""
    steps = batches(n, n)
    model = DistributedDataParallel(made().to(ranks.device()), device_ids=[ranks.device()])
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for step in steps[:rank + 1]:
            optimiser.zero_grad()
            loss_of(model, *(t.cuda() for t in step[rank])).backward()
            optimiser.step()
    reference = made()
    optimiser = torch.optim.SGD(reference.parameters(), lr=0.1)
    for i, step in enumerate(steps):
        optimiser.zero_grad()
        for x, y in step[i:]:   # divided by the number of all ranks
            (loss_of(reference, x, y) / n).backward()
        optimiser.step()
    for (name, p), q in zip(model.module.named_parameters(), reference.parameters()):
        check.close(f"uneven data: {name}", p, q, 10 * TOLERANCE)
        ranks.alike(f"uneven data: {name}", p)
        check.note(p)


def compressed(rank, n):
    """Gradients travel as 16 bits."""
    for hook in default_hooks.fp16_compress_hook, default_hooks.bf16_compress_hook:
        model = DistributedDataParallel(made().to(ranks.device()), device_ids=[ranks.device()])
        model.register_comm_hook(None, hook)
        x, y = (t.cuda() for t in batches(n)[0][rank])
        loss_of(model, x, y).backward()
        _, first = alone(made(), batches(n)[:1], [True] * n)
        for name, p in model.module.named_parameters():
            check.close(f"{hook.__name__}: the gradient of {name}", p.grad, first[name], 2e-2)
            ranks.alike(f"{hook.__name__}: the gradient of {name}", p.grad)
            check.note(p.grad)


def main():
    rank, n = ranks.start()
    together("plain", rank, n)
    together("views of buckets", rank, n, gradient_as_bucket_view=True)
    together("a static graph", rank, n, static_graph=True)
    together("unused parameters", rank, n, [i % 2 == 0 for i in range(n)], find_unused_parameters=True)
    together("SyncBatchNorm", rank, n, norm=True)
    accumulated(rank, n)
    uneven(rank, n)
    compressed(rank, n)
    ranks.finish()


if __name__ == "__main__":
    main()
