# SPDX-License-Identifier: Apache-2.0
"""Fully sharded data parallelism: FullyShardedDataParallel with all of its strategies, and fully_shard. Losses
and weights against one process's on the CPU, which has all ranks' batches. Clipped gradients, accumulation,
16-bit parameters, parameters on the CPU, full and sharded state dicts."""
import functools

import ranks
from ranks import check

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict as states
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (CPUOffload, FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy,
                                    ShardingStrategy, fully_shard)
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.nn import functional as F

STEPS, BATCH, WIDTH, TOLERANCE = 4, 3, 24, 1e-4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.wide, self.back = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 50), nn.Linear(50, WIDTH)

    def forward(self, x):
        return x + self.back(F.gelu(self.wide(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(11, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.last = nn.Linear(WIDTH, 7)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def made():
    torch.manual_seed(2)
    return Net()


def batches(n):
    random = torch.Generator().manual_seed(6)
    return [[(torch.randn(BATCH, 11, generator=random), torch.randint(0, 7, (BATCH,), generator=random))
             for _ in range(n)] for _ in range(STEPS)]


def alone(n, clip):
    model = made()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in batches(n):
        optimiser.zero_grad()
        loss = sum(F.cross_entropy(model(x), y) for x, y in step) / n
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimiser.step()
        losses.append(loss.detach())
    return model, torch.stack(losses)


def trained(model, rank, n, clip, turns=range(STEPS)):
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for turn in turns:
        x, y = (t.cuda() for t in batches(n)[turn][rank])
        optimiser.zero_grad()
        loss = F.cross_entropy(model(x).float(), y)
        loss.backward()
        clip(model)
        optimiser.step()
        losses.append(loss.detach())
    losses = torch.stack(losses)
    dist.all_reduce(losses, dist.ReduceOp.AVG)
    return losses, optimiser


def compare(what, losses, full, n, tolerance):
    reference, want = alone(n, 1.0)
    check.close(f"{what}: the losses", losses, want, tolerance)
    for name, wanted in reference.state_dict().items():
        check.close(f"{what}: {name}", full[name], wanted, 10 * tolerance)
    check.note(losses, *full.values())


def whole(model):
    return states.get_model_state_dict(model, options=states.StateDictOptions(full_state_dict=True))


def wrapped(what, rank, n, strategy, tolerance=TOLERANCE, **options):
    """FullyShardedDataParallel, each Block by itself."""
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    model = FullyShardedDataParallel(made(), auto_wrap_policy=policy, sharding_strategy=strategy,
                                     device_id=ranks.device(), use_orig_params=True, **options)
    losses, optimiser = trained(model, rank, n, lambda m: m.clip_grad_norm_(1.0))
    full = states.get_model_state_dict(
        model, options=states.StateDictOptions(full_state_dict=True, broadcast_from_rank0=False))
    compare(what, losses, full, n, tolerance)
    # The optimiser's state, of each rank's part and of all, there and back.
    parts = states.get_optimizer_state_dict(model, optimiser)
    states.set_optimizer_state_dict(model, optimiser, parts)
    everything = FullyShardedDataParallel.optim_state_dict(model, optimiser)
    check.expect(len(everything["state"]) == len(full), f"{what}: states of {len(everything['state'])} parameters")


def second(what, rank, n, mesh, tolerance=TOLERANCE, **options):
    """fully_shard."""
    model = made().to(ranks.device())
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    losses, _ = trained(model, rank, n, lambda m: nn.utils.clip_grad_norm_(m.parameters(), 1.0))
    compare(what, losses, whole(model), n, tolerance)


def accumulated(rank, n):
    """Gradients of three batches, of which the last is reduced, and once each."""
    model = FullyShardedDataParallel(made(), device_id=ranks.device(), use_orig_params=True)
    norms = []
    for silent in True, False:
        for turn in range(3):
            x, y = (t.cuda() for t in batches(n)[turn][rank])
            with model.no_sync() if silent and turn < 2 else torch.enable_grad():
                F.cross_entropy(model(x), y).backward()
        norms.append(model.clip_grad_norm_(1e9))
        model.zero_grad()
    reference = made()
    for step in batches(n)[:3]:
        for x, y in step:
            (F.cross_entropy(reference(x), y) / n).backward()
    want = nn.utils.clip_grad_norm_(reference.parameters(), 1e9)
    for norm in norms:
        check.close("the norm of accumulated gradients", norm, want, TOLERANCE)
    check.note(*norms)


def main():
    rank, n = ranks.start()
    strategy = ShardingStrategy
    for what in strategy.FULL_SHARD, strategy.SHARD_GRAD_OP, strategy.NO_SHARD:
        wrapped(what.name, rank, n, what)
    half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    wrapped("16 bits", rank, n, strategy.FULL_SHARD, 5e-2, mixed_precision=half)
    wrapped("on the CPU", rank, n, strategy.FULL_SHARD, cpu_offload=CPUOffload(True))
    mesh = init_device_mesh("cuda", (n,))
    second("fully_shard", rank, n, mesh)
    second("fully_shard, kept", rank, n, mesh, reshard_after_forward=False)
    second("fully_shard, 16 bits", rank, n, mesh, 5e-2, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    accumulated(rank, n)
    if n == 4:
        mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("copies", "shards"))
        for what in strategy.HYBRID_SHARD, strategy._HYBRID_SHARD_ZERO2:
            wrapped(what.name, rank, n, what, device_mesh=mesh)
        second("fully_shard, hybrid", rank, n, mesh)
    ranks.finish()


if __name__ == "__main__":
    main()
