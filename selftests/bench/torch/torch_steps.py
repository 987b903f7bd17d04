# SPDX-License-Identifier: Apache-2.0
"""Trains the character GPT of selftests/torch/gpt.py, and prints the milliseconds of each step. The
CPU's are computed by one thread, which is the fastest way for so small a model.

torch_steps.py cuda|cpu STEPS"""
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "torch"))
import torch  # noqa: E402

import gpt  # noqa: E402


def main():
    device, steps = sys.argv[1], int(sys.argv[2])
    torch.manual_seed(0)
    model = gpt.Gpt().to(device)
    optimiser = gpt.adamw(model)
    for step, (x, y) in enumerate(gpt.batches(steps, 8, 0)):
        began = time.perf_counter()
        loss = gpt.loss_of(model, x.to(device), y.to(device))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        value = loss.item()
        print(f"step {step} {(time.perf_counter() - began) * 1e3:.3f} loss {value:.4f}", flush=True)


main()
