# SPDX-License-Identifier: Apache-2.0
"""Deep Q-learning: a cart balances a pole. Experience goes from pinned memory to the GPU, a second
network is copied from the first now and then, errors are judged by Huber's loss."""
import math
import random

import torch
from torch import nn
from torch.nn import functional as F

import check


class Pole:
    """The usual cart and pole: 4 numbers, 2 actions, 1 for each step that it stands."""

    def reset(self):
        self.state = [random.uniform(-0.05, 0.05) for _ in range(4)]
        return self.state

    def step(self, action):
        x, v, angle, turn = self.state
        force = 10.0 if action else -10.0
        pull = (force + 0.05 * turn * turn * math.sin(angle)) / 1.1
        fall = ((9.8 * math.sin(angle) - math.cos(angle) * pull)
                / (0.5 * (4 / 3 - 0.1 * math.cos(angle) ** 2 / 1.1)))
        v += 0.02 * (pull - 0.05 * fall * math.cos(angle) / 1.1)
        turn += 0.02 * fall
        self.state = [x + 0.02 * v, v, angle + 0.02 * turn, turn]
        return self.state, abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.21


class Memory:
    """The last experiences, in pinned memory of the host."""

    def __init__(self, room):
        self.rows = torch.zeros(room, 11, pin_memory=True)
        self.batch = torch.zeros(64, 11, pin_memory=True)
        self.count = 0

    def add(self, state, action, reward, after, over):
        self.rows[self.count % len(self.rows)] = torch.tensor([*state, action, reward, *after, over])
        self.count += 1

    def take(self):
        rows = torch.randint(min(self.count, len(self.rows)), (64,))
        torch.index_select(self.rows, 0, rows, out=self.batch)
        return self.batch.to("cuda", non_blocking=True).split([4, 1, 1, 4, 1], 1)


def network():
    return nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


def loss_of(model, target, state, action, reward, after, over):
    with torch.no_grad():
        # Which action is best the one network says, what it is worth the other.
        best = model(after).argmax(1, keepdim=True)
        wanted = reward + 0.98 * (1 - over) * target(after).gather(1, best)
    return F.smooth_l1_loss(model(state).gather(1, action.long()), wanted)


check.repeatable()
random.seed(0)
pole, memory = Pole(), Memory(2000)
model, target = network().to("cuda"), network().to("cuda")
target.load_state_dict(model.state_dict())
optimiser = torch.optim.RMSprop(model.parameters(), lr=5e-4)
state, losses, compared = pole.reset(), [], False
for step in range(450):
    if random.random() < max(0.1, 1 - step / 300):
        action = random.randrange(2)
    else:
        with torch.no_grad():
            action = model(torch.tensor(state, device="cuda")).argmax().item()
    after, over = pole.step(action)
    memory.add(state, action, 1.0 - over, after, over)
    state = pole.reset() if over else after
    if step < 64:
        continue
    batch = memory.take()
    loss = loss_of(model, target, *batch)
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    if not compared:
        theirs, its_target = network(), network()
        theirs.load_state_dict(model.state_dict())
        its_target.load_state_dict(target.state_dict())
        loss_of(theirs, its_target, *(part.cpu() for part in batch)).backward()
        for ours, wanted in zip(model.parameters(), theirs.parameters()):
            check.close("a gradient", ours.grad, wanted.grad, 1e-4)
        compared = True
    nn.utils.clip_grad_value_(model.parameters(), 10)
    optimiser.step()
    losses.append(loss.detach())
    with torch.no_grad():
        for ours, its in zip(model.parameters(), target.parameters()):
            its.lerp_(ours, 0.02)
check.expect(torch.isfinite(torch.stack(losses)).all(), "the losses are not finite")
worth = model(torch.zeros(4, device="cuda")).max().item()
check.expect(worth > 2, f"it thinks that a pole that stands is worth {worth:.1f}")
check.note(torch.stack(losses), *model.parameters())
check.finish()
