# SPDX-License-Identifier: Apache-2.0
"""Pipelines of torch.distributed.pipelining: stages on ranks send activations and gradients of small batches, by
several schedules; some have several stages on each rank. And one that is data-parallel beside it. Losses and
gradients against one process's on the CPU."""
import ranks
from ranks import check

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F

WIDTH, PARTS, ROWS, TOLERANCE = 12, 8, 3, 1e-4


class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.wide, self.back = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 30), nn.Linear(30, WIDTH)

    def forward(self, x):
        return x + self.back(torch.tanh(self.wide(self.norm(x))))


def made(stages):
    torch.manual_seed(5)
    return [Stage() for _ in range(stages)]


def batch(turn, copy=0):
    random = torch.Generator().manual_seed(8 + turn + 100 * copy)
    return torch.randn(PARTS * ROWS, WIDTH, generator=random), torch.randn(PARTS * ROWS, WIDTH, generator=random)


def alone(stages, copies):
    """Two batches, and a step of the optimiser between them: losses, and the model."""
    model = nn.Sequential(*made(stages))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for turn in range(2):
        optimiser.zero_grad()
        for copy in range(copies):
            x, y = batch(turn, copy)
            loss = F.mse_loss(model(x), y)
            (loss / copies).backward()
            losses.append(loss.detach())
        if not turn:
            optimiser.step()
    return torch.stack(losses), model


def piped(what, schedule, per_rank, group, copy=0, data=None):
    """As this rank; `data`: the group of those that have the same stages."""
    place, n = dist.get_rank(group), dist.get_world_size(group)
    copies = dist.get_world_size(data) if data else 1
    want, reference = alone(n * per_rank, copies)
    models = made(n * per_rank)
    mine = [place + n * i for i in range(per_rank)]
    stages = [pipelining.PipelineStage(models[i].to(ranks.device()), i, n * per_rank, ranks.device(), group=group)
              for i in mine]
    runs = schedule(stages if per_rank > 1 else stages[0], PARTS, loss_fn=F.mse_loss)
    parameters = [p for i in mine for p in models[i].parameters()]
    optimiser = torch.optim.SGD(parameters, lr=0.1)
    for turn in range(2):
        optimiser.zero_grad()
        x, y = (t.cuda() for t in batch(turn, copy))
        losses = []
        args = [x] if place == 0 else []
        if n * per_rank - 1 in mine:
            runs.step(*args, target=y, losses=losses)
            loss = torch.stack(losses).mean().detach()
            check.close(f"{what}: the loss of batch {turn}", loss, want[turn * copies + copy], TOLERANCE)
            check.note(loss)
        else:
            runs.step(*args)
        for p in parameters:
            p.grad.div_(PARTS)  # schedules of PyTorch 2.6 add up
            if data:
                dist.all_reduce(p.grad, dist.ReduceOp.AVG, data)
        if not turn:
            optimiser.step()
    for i in mine:
        for (name, p), q in zip(models[i].named_parameters(), reference[i].parameters()):
            check.close(f"{what}: {name} of stage {i}", p, q, 10 * TOLERANCE)
            check.close(f"{what}: the gradient of {name} of stage {i}", p.grad, q.grad, 10 * TOLERANCE)
            check.note(p, p.grad)


def main():
    rank, n = ranks.start()
    world = dist.group.WORLD
    piped("GPipe", pipelining.ScheduleGPipe, 1, world)
    piped("1F1B", pipelining.Schedule1F1B, 1, world)
    piped("interleaved 1F1B", pipelining.ScheduleInterleaved1F1B, 2, world)
    piped("looped BFS", pipelining.ScheduleLoopedBFS, 2, world)
    piped("zero bubble", pipelining.ScheduleInterleavedZeroBubble, 2, world)
    if n % 2 == 0 and n > 2:
        mesh = init_device_mesh("cuda", (2, n // 2), mesh_dim_names=("data", "stages"))
        piped("1F1B, twice", pipelining.Schedule1F1B, 1, mesh["stages"].get_group(), mesh["data"].get_local_rank(),
              mesh["data"].get_group())
    ranks.finish()


if __name__ == "__main__":
    main()
