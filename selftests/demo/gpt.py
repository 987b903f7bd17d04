# SPDX-License-Identifier: Apache-2.0
"""Trains a small character GPT on a text, in plain PyTorch; as one of several ranks it learns from batches of
its own, and they share gradients. gpt.py [STEPS]"""
import hashlib
import os
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS gives the same bits each time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

WIDTH, HEADS, LAYERS, LENGTH, BATCH = 64, 4, 2, 32, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.join = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH),
                                 nn.Dropout(0.1))

    def forward(self, x):
        q, k, v = (part.unflatten(2, (HEADS, -1)).transpose(1, 2)
                   for part in self.qkv(self.before(x)).split(WIDTH, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.join(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.between(x))


class Gpt(nn.Module):
    def __init__(self, chars):
        super().__init__()
        self.token, self.place = nn.Embedding(chars, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.out = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, chars))

    def forward(self, x):
        x = self.token(x) + self.place(torch.arange(x.shape[1], device=x.device))
        return self.out(self.blocks(x))


torch.manual_seed(1)
torch.use_deterministic_algorithms(True)
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 60
rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
if ranks > 1:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
with open("/usr/share/common-licenses/GPL-3", encoding="utf-8") as file:
    text = file.read()
chars = sorted(set(text))
data = torch.tensor([chars.index(c) for c in text], device="cuda")
model = Gpt(len(chars)).to("cuda")
if ranks > 1:
    model = DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])
    torch.manual_seed(1 + rank)
optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
weights = sum(p.numel() for p in model.parameters())
print(f"{len(text)} characters of {len(chars)} kinds, {weights} weights; on {torch.cuda.get_device_name()}")
bits = hashlib.sha256()
for step in range(1, steps + 1):
    began = time.time()
    at = torch.randint(len(data) - LENGTH - 1, (BATCH, 1), device="cuda")
    window = data[at + torch.arange(LENGTH + 1, device="cuda")]
    loss = F.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    bits.update(loss.detach().cpu().numpy().tobytes())
    print(f"step {step}/{steps} loss {loss.item():.4f} {(time.time() - began) * 1e3:.1f} ms", flush=True)
learnt = b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())
bits.update(learnt)
print("checksum", bits.hexdigest()[:16], flush=True)
if ranks > 1:
    print("weights", hashlib.sha256(learnt).hexdigest()[:16], flush=True)
    dist.destroy_process_group()
