# SPDX-License-Identifier: Apache-2.0
"""A training by PyTorch Lightning: on one device in mixed precision, or on several, whose ranks it starts itself.
on_lightning.py [STEPS [PAUSE]]: with seconds to wait after each step"""
import os
import sys
import time

import offline
from offline import check

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 24
PAUSE = float(sys.argv[2]) if len(sys.argv) > 2 else 0
DEVICES = torch.cuda.device_count()


class Sides(pl.LightningModule):
    """On which side of a plane is a point?"""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))
        self.losses = []

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.losses.append(loss.detach())
        return loss

    def on_train_batch_end(self, *of):
        if self.trainer.is_global_zero:
            print("step", self.trainer.global_step, self.losses[-1].item(), flush=True)
        time.sleep(PAUSE)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-2)


pl.seed_everything(1)
check.repeatable()
x = torch.randn(512, 16)
data = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), 16, shuffle=True, num_workers=2, persistent_workers=True)
model = Sides()
trainer = pl.Trainer(max_steps=STEPS, accelerator="gpu", devices=DEVICES, strategy="ddp" if DEVICES > 1 else "auto",
                     logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                     precision="32-true" if DEVICES > 1 else "16-mixed")
trainer.fit(model, data)
check.expect(torch.stack(model.losses[-4:]).mean() < model.losses[0], "nothing is learned")
check.note(*(p for p in model.parameters()), torch.stack(model.losses))
everyone = trainer.strategy.all_gather(torch.cat([p.detach().flatten().to(trainer.strategy.root_device)
                                                  for p in model.parameters()])).reshape(DEVICES, -1)
check.expect(bool((everyone == everyone[0]).all()), "the ranks' weights are not the same")
trainer.strategy.barrier()
if trainer.is_global_zero:
    for other in getattr(trainer.strategy.launcher, "procs", []):
        other.wait()
    check.finish()
