# SPDX-License-Identifier: Apache-2.0
"""Trains with dropout on what two workers of a DataLoader bring in pinned memory, each with noise of its
own, and prints every loss with the order of the samples; at the end a checksum of losses, weights, the
optimiser's state and all random number generators. For tests that save it midway.

steps.py STEPS fork|spawn [PAUSE [graphed|two]]: with a pause of so many seconds after each step; forward and
backward as CUDA graphs; the second half of the model on a second device."""
import hashlib
import random
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
        return self.pictures[i] + 0.1 * torch.randn(1, 8, 8), self.labels[i], i


class Net(nn.Module):
    """Two halves, which may be on two devices."""

    def __init__(self, options):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Dropout(0.2), nn.Flatten()).to("cuda:0")
        self.device = torch.device("cuda:1" if "two" in options else "cuda:0")
        self.second = nn.Sequential(nn.Linear(512, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10)).to(self.device)
        self.parts = [self.first, self.second]
        if "graphed" in options:
            samples = torch.zeros(16, 1, 8, 8, device="cuda"), torch.zeros(16, 512, device="cuda", requires_grad=True)
            self.parts = torch.cuda.make_graphed_callables((self.first, self.second), tuple((x,) for x in samples))

    def forward(self, x):
        return self.parts[1](self.parts[0](x.to("cuda:0", non_blocking=True)).to(self.device))


def finish(model, optimiser):
    for parameter in model.parameters():
        check.note(parameter, *(value for key, value in sorted(optimiser.state[parameter].items())))
    check.note(torch.get_rng_state(), *torch.cuda.get_rng_state_all())
    check.digest.update(repr(random.getstate()).encode())
    check.finish()


def main():
    options = sys.argv[4:]
    check.repeatable()
    random.seed(0)
    model = Net(options)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = data.DataLoader(Digits(), 16, shuffle=True, num_workers=2, pin_memory=True,
                             multiprocessing_context=sys.argv[2])
    step, steps = 0, int(sys.argv[1])
    while step < steps:
        for x, y, i in loader:
            loss = F.cross_entropy(model(x), y.to(model.device, non_blocking=True))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            check.note(loss, i)
            step += 1
            order = hashlib.sha256(i.numpy().tobytes()).hexdigest()[:8]
            print("step", step, loss.item(), order, random.random(), flush=True)
            time.sleep(float(sys.argv[3]) if len(sys.argv) > 3 else 0)
            if step == steps:
                break
    finish(model, optimiser)


if __name__ == "__main__":
    main()
