# SPDX-License-Identifier: Apache-2.0
"""Graph networks: messages along the edges are summed, averaged and compared by scatter; attention
over a node's neighbours; the same sums by a sparse matrix."""
import torch
from torch import nn
from torch.nn import functional as F

import check

NODES, KINDS = 240, 4


def made():
    """A graph whose nodes know mostly nodes of their own kind: features, edges, kinds."""
    chosen = torch.Generator().manual_seed(0)
    kinds = torch.arange(NODES) % KINDS
    a, b = torch.randint(NODES, (2, 8000), generator=chosen)
    keep = (kinds[a] == kinds[b]) | (torch.rand(8000, generator=chosen) < 0.05)
    features = torch.randn(NODES, 16, generator=chosen) + 0.5 * F.one_hot(kinds, 16)
    return features, torch.stack([a[keep], b[keep]]), kinds


class Mean(nn.Module):
    """A node's own features and the mean of its neighbours'."""

    def __init__(self, before, after):
        super().__init__()
        self.own, self.theirs = nn.Linear(before, after), nn.Linear(before, after)

    def forward(self, x, edges):
        source, target = edges
        total = torch.zeros_like(x).index_add(0, target, x[source])
        count = torch.zeros(len(x), device=x.device).scatter_add(0, target, torch.ones_like(source) * 1.0)
        return self.own(x) + self.theirs(total / count.clamp(min=1)[:, None])


class Attention(nn.Module):
    """A softmax over each node's edges, by scatter."""

    def __init__(self, width):
        super().__init__()
        self.values = nn.Linear(width, width)
        self.asks, self.answers = nn.Linear(width, 1), nn.Linear(width, 1)

    def forward(self, x, edges):
        source, target = edges
        score = F.leaky_relu(self.asks(x)[target] + self.answers(x)[source], 0.2)[:, 0]
        with torch.no_grad():
            most = torch.full((len(x),), -1e9, device=x.device)
            most.scatter_reduce_(0, target, score, "amax")
        weight = (score - most[target]).exp()
        total = torch.zeros(len(x), device=x.device).index_add(0, target, weight)
        weight = weight / total[target]
        return torch.zeros_like(x).index_add(0, target, self.values(x)[source] * weight[:, None])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.attend, self.out = Mean(16, 32), Attention(32), nn.Linear(64, KINDS)

    def forward(self, x, edges):
        x = F.elu(self.mean(x, edges))
        near = torch.cat([x, self.attend(x, edges)], 1)
        return self.out(near)


def loss_of(model, features, edges, kinds):
    return F.cross_entropy(model(features, edges), kinds)


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=2e-2, weight_decay=5e-4)


check.repeatable()
graph = made()
model, losses = check.compare(Net, adam, loss_of, [graph] * 15, 5e-4, drift=20)
with torch.no_grad():
    told = model(*(part.to("cuda") for part in graph[:2])).argmax(1).cpu()
right = (told == graph[2]).float().mean().item()
check.expect(right > 0.9, f"it tells only {right:.0%} of the kinds")

# Without the demand for the same bits, sums are atomic.
torch.use_deterministic_algorithms(False)
features, edges, _ = graph
ones = torch.ones(edges.shape[1])
wanted = torch.zeros_like(features).index_add(0, edges[1], features[edges[0]])
got = torch.zeros_like(features, device="cuda").index_add(
    0, edges[1].to("cuda"), features.to("cuda")[edges[0].to("cuda")])
check.close("atomic sums", got, wanted, 1e-5)
matrix = torch.sparse_coo_tensor(edges.flip(0), ones, (NODES, NODES)).coalesce()
check.close("a sparse product", torch.sparse.mm(matrix.to("cuda"), features.to("cuda")), wanted, 1e-5)
check.close("a product of rows", matrix.to_sparse_csr().to("cuda") @ features.to("cuda"), wanted, 1e-5)
for how in ("sum", "mean", "amax", "amin", "prod"):
    index = edges[1][:, None].expand(-1, 16)
    values = (features[edges[0]] * 0.1 + 1).contiguous()
    want = torch.zeros_like(features).scatter_reduce(0, index, values, how, include_self=False)
    got = torch.zeros_like(features, device="cuda").scatter_reduce(
        0, index.to("cuda"), values.to("cuda"), how, include_self=False)
    check.close(f"scatter_reduce by {how}", got, want, 1e-5)
check.finish()
