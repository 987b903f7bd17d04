# SPDX-License-Identifier: Apache-2.0
"""Random numbers of the GPU: the same seed and state give the same numbers, their distribution is
right, generators are independent, dropout keeps what it should; recomputed activations drop the same."""
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import check


def states():
    torch.manual_seed(5)
    first = torch.randn(1000, device="cuda")
    state = torch.cuda.get_rng_state()
    second = torch.randn(1000, device="cuda")
    torch.cuda.set_rng_state(state)
    check.same("what comes after a state", torch.randn(1000, device="cuda"), second)
    torch.manual_seed(5)
    check.same("what comes after a seed", torch.randn(1000, device="cuda"), first)
    check.expect(not torch.equal(first, second), "numbers repeat")
    with torch.random.fork_rng():
        torch.rand(77, device="cuda")
    check.same("what comes after a fork", torch.randn(1000, device="cuda"), second)

    a, b = (torch.Generator("cuda").manual_seed(9) for _ in range(2))
    x = torch.rand(500, device="cuda", generator=a)
    torch.randn(999, device="cuda")
    check.same("a generator's numbers", torch.rand(500, device="cuda", generator=b), x)
    b.set_state(a.get_state())
    check.same("a generator's state", torch.rand(3, device="cuda", generator=a),
               torch.rand(3, device="cuda", generator=b))
    clone = a.clone_state()
    check.same("a clone's numbers", torch.rand(3, device="cuda", generator=a),
               torch.rand(3, device="cuda", generator=clone))
    check.expect(a.initial_seed() == 9, "a generator forgets its seed")
    check.note(first, second, x, a.get_state())


def distributions():
    """Mean and deviation of many numbers, within five errors."""
    torch.manual_seed(1)
    count = 40000
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0], device="cuda")
    for name, x, mean, deviation in (
            ("rand", torch.rand(count, device="cuda"), 0.5, 12 ** -0.5),
            ("randn", torch.randn(count, device="cuda"), 0, 1),
            ("randn in f16", torch.randn(count, device="cuda", dtype=torch.float16).float(), 0, 1),
            ("randn in f64", torch.randn(count, device="cuda", dtype=torch.float64), 0, 1),
            ("randint", torch.randint(11, (count,), device="cuda").double(), 5, 10 ** 0.5),
            ("bernoulli", torch.full((count,), 0.3, device="cuda").bernoulli(), 0.3, 0.21 ** 0.5),
            ("exponential", torch.empty(count, device="cuda").exponential_(2), 0.5, 0.5),
            ("poisson", torch.poisson(torch.full((count,), 3.0, device="cuda")), 3, 3 ** 0.5),
            ("multinomial", torch.multinomial(weights, count, True).double(), 2, 1),
            ("gamma", torch.distributions.Gamma(2 * weights[0], weights[0]).sample((count,)), 2, 2 ** 0.5)):
        error = abs(x.mean().item() - mean) / (deviation / count ** 0.5)
        check.expect(error < 5, f"{name} has its mean {error:.1f} errors off")
        error = abs(x.std().item() / deviation - 1)
        check.expect(error < 0.05, f"{name} deviates by {error:.0%} more or less")
        check.note(x)
    order = torch.randperm(3000, device="cuda")
    check.same("a permutation, sorted", order.sort()[0], torch.arange(3000))
    check.note(order)


def dropout():
    torch.manual_seed(2)
    x = torch.ones(200, 200, device="cuda", requires_grad=True)
    y = F.dropout(x, 0.25)
    kept = (y != 0).float().mean().item()
    check.expect(abs(kept - 0.75) < 0.012, f"dropout keeps {kept:.1%}")
    check.same("what is kept", y[y != 0].detach(), torch.full((int((y != 0).sum()),), 1 / 0.75))
    y.sum().backward()
    check.same("the gradient of dropout", x.grad, y.detach())
    check.same("dropout in evaluation", F.dropout(x, 0.25, training=False).detach(), x.detach())
    planes = F.dropout2d(torch.ones(4, 64, 3, 3, device="cuda"), 0.5).flatten(2)
    check.same("a plane of dropout2d", planes.amin(2), planes.amax(2))
    check.note(y, planes)


def recomputed():
    """Activations that are not kept but computed again: the same dropout, hence the same gradients."""
    part = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.3), nn.Linear(64, 32)).to("cuda")
    x = torch.randn(16, 32, device="cuda")
    gradients = []
    for again in (False, True):
        torch.manual_seed(3)
        part.zero_grad()
        y = checkpoint(part, x, use_reentrant=False) if again else part(x)
        y.square().mean().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in part.parameters()]))
    check.same("the gradients of recomputed activations", gradients[1], gradients[0])
    # Attention has a dropout of its own.
    torch.manual_seed(4)
    q = torch.randn(2, 2, 64, 16, device="cuda", requires_grad=True)
    y = F.scaled_dot_product_attention(q, q, q, dropout_p=0.2, is_causal=True)
    y.square().sum().backward()
    check.expect(bool(q.grad.isfinite().all()), "attention with dropout has infinite gradients")
    check.note(gradients[0], y, q.grad)


check.repeatable()
states()
distributions()
dropout()
recomputed()
check.finish()
