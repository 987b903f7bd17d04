# SPDX-License-Identifier: Apache-2.0
"""A convolutional network on handwritten digits: convolutions, batch normalisation, pooling, SGD with
momentum; in both layouts of memory; then trained until it reads most digits."""
import torch
from torch import nn
from torch.nn import functional as F

import check


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 32, 3, padding=1)
        self.depth = nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.out = nn.Linear(32 * 2 * 2, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        x = F.avg_pool2d(F.relu(self.depth(self.second(x))), 2)
        return self.out(x.flatten(1))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)


def loss_of(model, pictures, labels):
    return F.cross_entropy(model(pictures), labels)


check.repeatable()
pictures, labels = check.digits()
batches = [(pictures[i:i + 64], labels[i:i + 64]) for i in range(0, 1536, 64)]

check.compare(Net, sgd, loss_of, batches[:4], 2e-4)
check.compare(lambda: Net().to(memory_format=torch.channels_last), sgd, loss_of, batches[:2], 2e-4)

model, losses, _ = check.train(Net, sgd, loss_of, batches * 4, check.GPU)
model.eval()
with torch.no_grad():
    read = model(pictures[1536:].to("cuda")).argmax(1).cpu()
right = (read == labels[1536:]).float().mean().item()
check.expect(right > 0.9, f"it reads only {right:.0%} of the digits")
check.note(losses, read, model.norm.running_var)
check.finish()
