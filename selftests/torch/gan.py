# SPDX-License-Identifier: Apache-2.0
"""A generative adversarial network on handwritten digits: transposed convolutions against convolutions
with spectral normalisation, two optimisers, binary cross entropy."""
import torch
from torch import nn
from torch.nn import functional as F

import check


def painter():
    return nn.Sequential(nn.ConvTranspose2d(16, 32, 2), nn.BatchNorm2d(32), nn.ReLU(),
                         nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.BatchNorm2d(16), nn.ReLU(),
                         nn.ConvTranspose2d(16, 1, 4, 2, 1), nn.Sigmoid())


def critic():
    norm = nn.utils.parametrizations.spectral_norm
    return nn.Sequential(norm(nn.Conv2d(1, 16, 4, 2, 1)), nn.LeakyReLU(0.2),
                         norm(nn.Conv2d(16, 32, 4, 2, 1)), nn.LeakyReLU(0.2),
                         nn.Flatten(), nn.Linear(128, 1))


def judge(critic, real, painted):
    real, painted = critic(real), critic(painted)
    return (F.binary_cross_entropy_with_logits(real, torch.full_like(real, 0.9))
            + F.binary_cross_entropy_with_logits(painted, torch.zeros_like(painted)))


def please(critic, painted):
    said = critic(painted)
    return F.binary_cross_entropy_with_logits(said, torch.ones_like(said))


def both(device, count):
    """Trains both for so many steps: the losses, the critic's first gradients, the painter."""
    torch.manual_seed(0)
    paints, judges = painter().to(device), critic().to(device)
    ours = torch.optim.Adam(paints.parameters(), lr=2e-3, betas=(0.5, 0.999))
    theirs = torch.optim.Adam(judges.parameters(), lr=1e-3, betas=(0.5, 0.999))
    chosen = torch.Generator().manual_seed(0)
    losses, first = [], None
    for step in range(count):
        real = pictures[step * 32 % 1760:][:32].to(device)
        noise = torch.randn(len(real), 16, 1, 1, generator=chosen).to(device)
        painted = paints(noise)
        loss = judge(judges, real, painted.detach())
        theirs.zero_grad()
        loss.backward()
        first = first or [p.grad.clone() for p in judges.parameters()]
        theirs.step()
        pleased = please(judges, painted)
        ours.zero_grad()
        pleased.backward()
        ours.step()
        losses.append(torch.stack([loss.detach(), pleased.detach()]))
    return torch.stack(losses), first, paints


check.repeatable()
pictures, _ = check.digits()
wanted, gradients, _ = both(torch.device("cpu"), 4)
got, ours, _ = both(check.GPU, 4)
check.close("the losses", got, wanted, 1e-3)
for one, other in zip(ours, gradients):
    check.close("a gradient of the critic", one, other, 5e-4)
losses, _, paints = both(check.GPU, 40)
paints.eval()
drawn = paints(torch.randn(4, 16, 1, 1, device="cuda"))
check.expect(bool(((drawn >= 0) & (drawn <= 1)).all()), "a picture has a point outside of [0, 1]")
check.expect(bool(losses.isfinite().all()), "the losses are not finite")
check.note(losses, drawn)
check.finish()
