# SPDX-License-Identifier: Apache-2.0
"""A training whose ranks print every loss, for tests that save a job of several ranks midway. steps.py STEPS [WAY]

WAY: ddp, DistributedDataParallel with gradient buckets; hybrid, FSDP that shards over pairs of ranks and replicates over
the pairs; tensor, a model split over pairs of ranks, and its replicas sharded over the pairs by fully_shard."""
import sys

import ranks
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import check


def divided(model, way, world):
    """The model as this rank holds it, and which batches are its own."""
    if way == "ddp":
        return DistributedDataParallel(model, bucket_cap_mb=0.05), dist.get_rank()
    mesh = init_device_mesh("cuda", (world // 2, 2), mesh_dim_names=("outer", "inner"))
    if way == "hybrid":
        return FullyShardedDataParallel(model, sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_mesh=mesh,
                                        device_id=ranks.device(), use_orig_params=True), dist.get_rank()
    parallelize_module(model, mesh["inner"], {"3": ColwiseParallel(), "5": RowwiseParallel()})
    return fully_shard(model, mesh=mesh["outer"]), mesh.get_local_rank("outer")


rank, world = ranks.start()
torch.manual_seed(7)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)).cuda()
way = sys.argv[2] if len(sys.argv) > 2 else "ddp"
model, share = divided(model, way, world)
# DTensors on several meshes cannot be updated together.
optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False if way == "tensor" else None)
pictures, labels = check.digits()
torch.manual_seed(100 + share)
for step in range(int(sys.argv[1])):
    pick = torch.randint(0, 512, (32,))
    x = torch.as_tensor(pictures[pick]).reshape(32, 64).cuda(non_blocking=True)
    y = torch.as_tensor(labels[pick]).cuda(non_blocking=True)
    loss = nn.functional.cross_entropy(model(x), y)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    print(f"step {step} loss {loss.item().hex()} of all {total.item().hex()}", flush=True)
for parameter in model.parameters():
    check.note(parameter.to_local() if isinstance(parameter, DTensor) else parameter)
check.note(torch.cuda.get_rng_state())
ranks.finish()
