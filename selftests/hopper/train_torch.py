# SPDX-License-Identifier: Apache-2.0
"""Trains a small transformer in bf16 for as many steps as the argument says; prints every tenth."""
import sys

import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attend = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x):
        y = self.first(x)
        x = x + self.attend(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.second(x))


torch.manual_seed(0)
net = nn.Sequential(nn.Embedding(256, 128), *[Block(128) for _ in range(4)], nn.Linear(128, 256))
net = net.to("cuda")
optimiser = torch.optim.AdamW(net.parameters())
for step in range(int(sys.argv[1])):
    x = torch.randint(0, 256, (8, 64)).to("cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = nn.functional.cross_entropy(net(x).flatten(0, 1).float(), x.flatten())
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    optimiser.step()
    if step % 10 == 0:
        print("step", step, loss.item(), flush=True)
print("PASS", flush=True)
