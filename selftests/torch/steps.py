# SPDX-License-Identifier: Apache-2.0
"""Trains with dropout on what two workers of a DataLoader bring, each with noise of its own, and prints
every loss: for test-torch, which saves it midway. steps.py STEPS fork|spawn [PAUSE]: with a pause of so
many seconds after each step."""
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import data

import check


class Digits(data.Dataset):
    def __init__(self):
        self.pictures, self.labels = check.digits()

    def __len__(self):
        return 512

    def __getitem__(self, i):
        return self.pictures[i] + 0.1 * torch.randn(1, 8, 8), self.labels[i]


def main():
    check.repeatable()
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(),
                          nn.Linear(512, 10)).to("cuda")
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = data.DataLoader(Digits(), 16, shuffle=True, num_workers=2, pin_memory=True,
                             multiprocessing_context=sys.argv[2])
    step, steps = 0, int(sys.argv[1])
    while step < steps:
        for x, y in loader:
            loss = F.cross_entropy(model(x.to("cuda", non_blocking=True)), y.to("cuda", non_blocking=True))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            check.note(loss)
            step += 1
            print("step", step, loss.item(), flush=True)
            time.sleep(float(sys.argv[3]) if len(sys.argv) > 3 else 0)
            if step == steps:
                break
    check.finish()


if __name__ == "__main__":
    main()
