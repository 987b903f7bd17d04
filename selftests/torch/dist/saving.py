# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint: a training that is sharded is saved by all ranks, and goes on with the same bits
in a new model, which is sharded otherwise; the same in the background, and by one rank for all."""
import os
import shutil
import tempfile

import ranks
from ranks import check

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint import state_dict as states
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel


def made(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(9, 31), nn.Tanh(), nn.Linear(31, 5)).to(ranks.device())


def sharded(seed, mesh):
    model = made(seed)
    for layer in model[0], model[2]:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def steps(model, optimiser, turns):
    losses = []
    for turn in turns:
        x = torch.randn(4, 9, generator=torch.Generator().manual_seed(turn)).cuda()
        optimiser.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    return torch.stack(losses)


class Training:
    """What torch.distributed.checkpoint saves and loads."""

    def __init__(self, model, optimiser):
        self.model, self.optimiser = model, optimiser

    def state_dict(self):
        return dict(zip(("model", "optimiser"), states.get_state_dict(self.model, self.optimiser)))

    def load_state_dict(self, state):
        states.set_state_dict(self.model, self.optimiser, model_state_dict=state["model"],
                              optim_state_dict=state["optimiser"])


def resumed(what, folder, model, optimiser, want):
    dcp.load({"training": Training(model, optimiser)}, checkpoint_id=folder)
    got = steps(model, optimiser, range(3, 6))
    check.same(f"{what}: losses after it was loaded", got, want)


def main():
    rank, n = ranks.start("cpu:gloo,cuda:nccl")
    folder = [tempfile.mkdtemp()] if rank == 0 else [None]
    dist.broadcast_object_list(folder)
    folder = folder[0]
    mesh = init_device_mesh("cuda", (n,))
    model, optimiser = sharded(1, mesh)
    check.note(steps(model, optimiser, range(3)))
    dcp.save({"training": Training(model, optimiser)}, checkpoint_id=os.path.join(folder, "at once"))
    saving = dcp.async_save({"training": Training(model, optimiser)}, checkpoint_id=os.path.join(folder, "later"))
    saving.result()
    want = steps(model, optimiser, range(3, 6))
    check.note(want)
    for name in "at once", "later":
        resumed(name, os.path.join(folder, name), *sharded(2, mesh), want)
    parts = len([f for f in os.listdir(os.path.join(folder, "at once")) if f.endswith(".distcp")])
    check.expect(parts == n, f"{n} ranks have written {parts} files")
    if n > 2:
        halves = init_device_mesh("cuda", (2, n // 2), mesh_dim_names=("copies", "shards"))
        model, optimiser = sharded(3, halves)
        dcp.load({"training": Training(model, optimiser)}, checkpoint_id=os.path.join(folder, "at once"))
        check.close("sharded otherwise: losses", steps(model, optimiser, range(3, 6)), want, 1e-5)
    # Every rank has all: one saves it.
    model = DistributedDataParallel(made(4), device_ids=[ranks.device()])
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    dcp.load({"training": Training(model, optimiser)}, checkpoint_id=os.path.join(folder, "at once"))
    check.close("not sharded: losses", steps(model, optimiser, range(3, 6)), want, 1e-5)
    file = os.path.join(folder, "one.pt")
    if rank == 0:
        torch.save({"model": model.state_dict(), "optimiser": optimiser.state_dict()}, file)
    dist.barrier()
    want = steps(model, optimiser, range(6, 8))
    state = torch.load(file, map_location=ranks.device())
    model = DistributedDataParallel(made(5), device_ids=[ranks.device()])
    model.load_state_dict(state["model"])
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    optimiser.load_state_dict(state["optimiser"])
    check.same("by one rank: losses", steps(model, optimiser, range(6, 8)), want)
    check.note(want)
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder)
    ranks.finish()


if __name__ == "__main__":
    main()
