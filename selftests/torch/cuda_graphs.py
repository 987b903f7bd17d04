# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs: a whole step of training captured and replayed; make_graphed_callables; random numbers
that go on in replays; two graphs that share a pool of memory."""
import torch
from torch import nn
from torch.nn import functional as F

import check


def net(dropout=0.0):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.ReLU(), nn.Dropout(dropout),
                         nn.Linear(64, 8)).to("cuda")


def batches(count):
    chosen = torch.Generator().manual_seed(0)
    return [(torch.randn(16, 32, generator=chosen).to("cuda"),
             torch.randint(8, (16,), generator=chosen).to("cuda")) for _ in range(count)]


def step(model, optimiser, x, y):
    optimiser.zero_grad(set_to_none=True)
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimiser.step()
    return loss


def whole_step():
    """A step in one graph, its optimiser included, against steps without."""
    data = batches(12)
    losses = []
    for captured in (False, True):
        model = net()
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-2, capturable=True)
        x, y = (part.clone() for part in data[0])
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step(model, optimiser, x, y)
        torch.cuda.current_stream().wait_stream(side)
        if captured:
            graph = torch.cuda.CUDAGraph()
            optimiser.zero_grad(set_to_none=True)
            with torch.cuda.graph(graph):
                loss = step(model, optimiser, x, y)
        each = []
        for batch in data[1:]:
            if captured:
                x.copy_(batch[0])
                y.copy_(batch[1])
                graph.replay()
            else:
                loss = step(model, optimiser, *batch)
            each.append(loss.detach().clone())
        losses.append(torch.stack(each))
        check.note(losses[-1], *model.parameters())
    check.same("the losses of replays", losses[1], losses[0])


def callables():
    """Forward and backward of a part as two graphs, the rest without."""
    data = batches(6)
    losses = []
    for graphed in (False, True):
        model, head = net(), nn.Linear(8, 8).to("cuda")
        with torch.no_grad():
            head.weight.copy_(torch.eye(8))
            head.bias.zero_()
        part = model
        if graphed:
            sample = torch.zeros(16, 32, device="cuda")
            part = torch.cuda.make_graphed_callables(model, (sample,))
        both = [*model.parameters(), *head.parameters()]
        optimiser = torch.optim.SGD(both, lr=0.1)
        each = []
        for x, y in data:
            optimiser.zero_grad(set_to_none=True)
            loss = F.cross_entropy(head(part(x)), y)
            loss.backward()
            optimiser.step()
            each.append(loss.detach())
        losses.append(torch.stack(each))
    check.same("the losses of graphed callables", losses[1], losses[0])
    check.note(losses[1])


def random_numbers():
    """Each replay draws other numbers, the same as without a graph."""
    x = torch.zeros(1000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    torch.manual_seed(1)
    F.dropout(torch.ones_like(x), 0.5)
    torch.manual_seed(1)
    with torch.cuda.graph(graph):
        y = F.dropout(torch.ones_like(x), 0.5) + torch.rand_like(x)
    torch.manual_seed(1)
    got = []
    for _ in range(3):
        graph.replay()
        got.append(y.clone())
    torch.manual_seed(1)
    for i in range(3):
        wanted = F.dropout(torch.ones_like(x), 0.5) + torch.rand_like(x)
        check.same(f"the random numbers of replay {i}", got[i], wanted)
    check.note(*got)


def shared_pool():
    a = torch.arange(256.0, device="cuda")
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    (a * 2).cumsum(0)
    with torch.cuda.graph(first):
        b = (a * 2).cumsum(0)
    with torch.cuda.graph(second, pool=first.pool()):
        c = (b.flip(0) - 1).sum()
    for value in (1.0, 3.0):
        a.fill_(value)
        first.replay()
        second.replay()
        check.expect(c.item() == value * 256 * 257 - 256, f"two graphs give {c.item()}")
    first.reset()
    second.reset()


check.repeatable()
whole_step()
callables()
random_numbers()
shared_pool()
check.finish()
