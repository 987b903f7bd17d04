# SPDX-License-Identifier: Apache-2.0
"""A vision transformer on handwritten digits: patches, a class token, PyTorch's own encoder layers, Adam
with a cosine for its rate; in bf16 by autocast as well."""
import torch
from torch import nn
from torch.nn import functional as F

import check


class Vit(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, stride=2)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.place = nn.Parameter(torch.randn(1, 17, width) * 0.5)
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0, activation="gelu",
                                           batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 10))

    def forward(self, x):
        x = self.patches((x - 0.3) * 2.7).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.place
        return self.head(self.encoder(x)[:, 0])


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=4e-3, amsgrad=True)


def loss_of(model, pictures, labels):
    return F.cross_entropy(model(pictures), labels, label_smoothing=0.05)


check.repeatable()
pictures, labels = check.digits()
batches = [(pictures[i:i + 32], labels[i:i + 32]) for i in range(0, 1536, 32)]

check.compare(Vit, adam, loss_of, batches[:2], 2e-4)
check.compare(Vit, adam, loss_of, batches[:2], 5e-2, torch.bfloat16, drift=2)

torch.manual_seed(0)
model = Vit().to("cuda")
optimiser = adam(model)
rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 60)
for x, y in (batches * 2)[:60]:
    with torch.autocast("cuda", torch.bfloat16):
        loss = loss_of(model, x.to("cuda"), y.to("cuda"))
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    optimiser.step()
    rate.step()
    check.note(loss)
# In inference PyTorch takes a layer's fused path.
model.eval()
with torch.inference_mode():
    read = model(pictures[1536:].to("cuda")).argmax(1).cpu()
right = (read == labels[1536:]).float().mean().item()
check.expect(right > 0.5, f"it reads only {right:.0%} of the digits")
check.note(read, *model.parameters())
check.finish()
