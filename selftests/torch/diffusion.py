# SPDX-License-Identifier: Apache-2.0
"""A small diffusion model of handwritten digits: a U-Net with group normalisation, attention and
transposed convolutions learns to tell the noise; a moving average of it makes pictures."""
import copy

import torch
from torch import nn
from torch.nn import functional as F

import check

STEPS = 40


class Unit(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, padding=1)
        self.second = nn.Conv2d(after, after, 3, padding=1)
        self.norm = nn.GroupNorm(4, after)
        self.time = nn.Linear(32, after)
        self.pass_on = nn.Conv2d(before, after, 1)

    def forward(self, x, time):
        y = F.silu(self.norm(self.first(x))) + self.time(time)[..., None, None]
        return self.pass_on(x) + self.second(F.silu(y))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
        self.down, self.middle, self.up = Unit(1, 16), Unit(16, 32), Unit(32, 16)
        self.smaller = nn.Conv2d(16, 16, 3, stride=2, padding=1)
        self.larger = nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1)
        self.attend = nn.MultiheadAttention(32, 2, batch_first=True)
        self.out = nn.Conv2d(16, 1, 3, padding=1)

    def forward(self, x, step):
        angle = step[:, None] * torch.exp(-torch.arange(8, device=x.device) * 0.6)
        time = self.time(torch.cat([angle.sin(), angle.cos()], 1))
        left = self.down(x, time)
        y = self.middle(self.smaller(left), time)
        rows = y.flatten(2).transpose(1, 2)
        rows = rows + self.attend(rows, rows, rows, need_weights=False)[0]
        y = self.larger(rows.transpose(1, 2).reshape(y.shape))
        return self.out(self.up(torch.cat([left, y], 1), time))


BETA = torch.linspace(1e-3, 0.2, STEPS)
KEPT = torch.cumprod(1 - BETA, 0)


def loss_of(model, pictures, noise, step):
    kept = KEPT.to(pictures.device)[step][:, None, None, None]
    noisy = kept.sqrt() * pictures + (1 - kept).sqrt() * noise
    return F.mse_loss(model(noisy, step), noise)


def batches(count):
    pictures, _ = check.digits()
    chosen = torch.Generator().manual_seed(0)
    for i in range(count):
        part = pictures[i * 32 % 1760:][:32] * 2 - 1
        yield (part, torch.randn(part.shape, generator=chosen),
               torch.randint(STEPS, (len(part),), generator=chosen))


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=2e-3)


check.repeatable()
check.compare(UNet, adamw, loss_of, batches(2), 5e-4)

torch.manual_seed(0)
model = UNet().to("cuda")
optimiser = adamw(model)
average = copy.deepcopy(model).requires_grad_(False)
losses = []
for batch in batches(60):
    loss = loss_of(model, *(part.to("cuda") for part in batch))
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    optimiser.step()
    losses.append(loss.detach())
    with torch.no_grad():
        torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.1)
losses = torch.stack(losses)
check.expect(losses[-10:].mean() < 0.6 * losses[:3].mean(), "it does not learn")

noise = torch.Generator("cuda").manual_seed(1)
x = torch.randn(8, 1, 8, 8, device="cuda", generator=noise)
with torch.no_grad():
    for i in reversed(range(STEPS)):
        told = average(x, torch.full((8,), i, device="cuda"))
        x = (x - BETA[i] / (1 - KEPT[i]).sqrt() * told) / (1 - BETA[i]).sqrt()
        if i:
            x += BETA[i].sqrt() * torch.randn(x.shape, device="cuda", generator=noise)
check.expect(bool(x.isfinite().all()), "the pictures are not finite")
check.note(losses, x)
check.finish()
