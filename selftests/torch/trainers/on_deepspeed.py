# SPDX-License-Identifier: Apache-2.0
"""A training by DeepSpeed in bf16, sharded by ZeRO's stage $ZERO, with gradients of two batches added up; started by
singvgpu run -n. on_deepspeed.py [STEPS [PAUSE]]: with seconds to wait after each step"""
import os
import sys
import time

import offline
from offline import check

import deepspeed
import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 24
PAUSE = float(sys.argv[2]) if len(sys.argv) > 2 else 0
CONFIG = {
    "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2, "gradient_clipping": 1.0,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}}, "bf16": {"enabled": True},
    "zero_optimization": {"stage": int(os.environ["ZERO"]), "overlap_comm": True, "contiguous_gradients": True},
}


class Next(nn.Module):
    """Which number follows these four?"""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(100, 32)
        self.net = nn.Sequential(nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 100))

    def forward(self, rows):
        return nn.functional.cross_entropy(self.net(self.words(rows[:, :4]).flatten(1)).float(), rows[:, 4])


check.repeatable()
deepspeed.init_distributed()
rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
engine = deepspeed.initialize(model=(model := Next()), model_parameters=model.parameters(), config=CONFIG)[0]
rows = offline.tokens(64, 5).cuda()
losses = []
for step in range(STEPS):
    for part in range(2):
        first = 8 * ((2 * step + part) * ranks + rank) % 64
        loss = engine(rows[first:first + 8])
        engine.backward(loss)
        engine.step()
    torch.distributed.all_reduce(loss := loss.detach())
    losses.append(loss / ranks)
    if rank == 0:
        print("step", step, losses[-1].item(), flush=True)
    time.sleep(PAUSE)
check.expect(torch.stack(losses[-4:]).mean() < losses[0] / 2, "nothing is learned")
with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
    weights = torch.cat([p.detach().flatten() for p in engine.module.parameters()])
everyone = [torch.empty_like(weights) for _ in range(ranks)]
torch.distributed.all_gather(everyone, weights)
check.expect(all(torch.equal(w, weights) for w in everyone), "the ranks' weights are not the same")
check.note(weights, torch.stack(losses))
if rank == 0:
    check.finish()
torch.distributed.destroy_process_group()
