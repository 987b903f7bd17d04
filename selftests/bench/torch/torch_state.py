# SPDX-License-Identifier: Apache-2.0
"""Trains in PyTorch without end, with the workers of a DataLoader, what has some hundred MB of state; a quarter of
the weights is frozen. torch_state.py FILE: prints the time and size of torch.save of the same state to FILE, on the
disk when the time ends, and then each step."""
import os
import sys
import time
import warnings

warnings.filterwarnings("ignore", message="(?s).*is not compatible with the current PyTorch")

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils import data  # noqa: E402

WIDTH, LAYERS, STEPS = 1024, 12, 1000000


class Rows(data.Dataset):
    def __len__(self):
        return 16 * STEPS

    def __getitem__(self, i):
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(i))


def save(path, model, optimiser):
    began = time.monotonic()
    with open(path, "wb") as file:
        torch.save([model.state_dict(), optimiser.state_dict(), torch.get_rng_state(), torch.cuda.get_rng_state_all()], file)
        file.flush()
        os.fsync(file.fileno())
    print("torch.save", os.path.getsize(path), time.monotonic() - began, flush=True)
    os.unlink(path)


def main():
    torch.manual_seed(0)
    layers = []
    for i in range(LAYERS):
        layers += [nn.Linear(WIDTH, WIDTH), nn.GELU()]
        layers[-2].requires_grad_(i >= LAYERS // 4)
    model = nn.Sequential(*layers).to("cuda")
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    for step, x in enumerate(data.DataLoader(Rows(), 16, num_workers=2, pin_memory=True), 1):
        loss = (model(x.to("cuda", non_blocking=True)) - 1).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        torch.cuda.synchronize()
        if step == 3:
            save(sys.argv[1], model, optimiser)
        print(f"step {step}/{STEPS}", flush=True)


if __name__ == "__main__":
    main()
