# SPDX-License-Identifier: Apache-2.0
"""Recurrent networks: an LSTM of two layers that continues waves, trained by LBFGS and Adam; GRU and
sequences of several lengths, packed; one cell step by step."""
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import rnn

import check


class Waves(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, 24, 2, batch_first=True)
        self.out = nn.Linear(24, 1)

    def forward(self, x):
        return self.out(self.lstm(x)[0])


class Packed(nn.Module):
    """The last state of sequences of several lengths, read in both directions."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16, padding_idx=0)
        self.gru = nn.GRU(16, 16, bidirectional=True, batch_first=True)
        self.out = nn.Linear(32, 3)

    def forward(self, words, lengths):
        packed = rnn.pack_padded_sequence(self.embed(words), lengths.cpu(), batch_first=True,
                                          enforce_sorted=False)
        _, last = self.gru(packed)
        return self.out(last.transpose(0, 1).flatten(1))


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.LSTMCell(1, 16), nn.Linear(16, 1)

    def forward(self, x):
        state, answers = None, []
        for at in x.unbind(1):
            state = self.cell(at, state)
            answers.append(self.out(state[0]))
        return torch.stack(answers, 1)


def mse(model, x, y):
    return F.mse_loss(model(x), y)


def waves(count):
    at = torch.arange(41) / 4 + torch.linspace(0, 6, count)[:, None]
    wave = torch.sin(at)[..., None]
    return wave[:, :-1], wave[:, 1:]


def words():
    chosen = torch.Generator().manual_seed(0)
    lengths = torch.tensor([9, 3, 7, 1])
    text = torch.randint(1, 20, (4, 9), generator=chosen) * (torch.arange(9) < lengths[:, None])
    return text, lengths, torch.tensor([0, 1, 2, 1])


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=1e-2)


check.repeatable()
check.compare(Waves, adam, mse, [waves(8)] * 3, 2e-4)
check.compare(Cell, adam, mse, [waves(4)] * 2, 2e-4)
check.compare(Packed, adam, lambda m, text, lengths, y: F.cross_entropy(m(text, lengths), y),
              [words()] * 2, 2e-4)

torch.manual_seed(0)
model = Waves().to("cuda")
x, y = (part.to("cuda") for part in waves(8))
optimiser = torch.optim.LBFGS(model.parameters(), lr=0.8, max_iter=15)


def step():
    optimiser.zero_grad()
    loss = mse(model, x, y)
    loss.backward()
    return loss


for _ in range(3):
    first = optimiser.step(step)
loss = mse(model, x, y)
check.expect(loss.item() < 0.05, f"the loss is {loss.item():.3f} at the end")
check.note(first, loss, *model.parameters())
check.finish()
