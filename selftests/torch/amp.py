# SPDX-License-Identifier: Apache-2.0
"""Mixed precision: autocast in f16 with GradScaler, which passes over a step with infinite gradients
and scales less; bf16; gradients accumulated under both; what autocast computes in which type."""
import torch
from torch import nn
from torch.nn import functional as F

import check


def net():
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.SiLU(), nn.Flatten(),
                         nn.Linear(1024, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 10))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def loss_of(model, pictures, labels):
    return F.cross_entropy(model(pictures), labels)


def types():
    """Products in the smaller type, losses and norms in f32, whatever comes in."""
    a = torch.randn(8, 8, device="cuda")
    for kind in (torch.float16, torch.bfloat16):
        with torch.autocast("cuda", kind):
            check.expect((a @ a).dtype == kind, f"a product is not {kind}")
            check.expect(F.softmax(a.to(kind), 1).dtype == torch.float32, "a softmax is not f32")
            with torch.autocast("cuda", enabled=False):
                check.expect((a @ a).dtype == torch.float32, "autocast is not off")
        for shape in ((8, 8, 8), (33, 65, 17), (1, 128, 1)):
            x, y = torch.randn(shape[:2]).to(kind), torch.randn(shape[1:]).to(kind)
            close = 2e-2 if kind == torch.bfloat16 else 3e-3
            got = x.to("cuda") @ y.to("cuda")
            check.close(f"a product in {kind}", got, x.double() @ y.double(), close)
            check.note(got)


def scaled(batches):
    """Training with a scaler: an infinite loss is passed over, and halves the scale."""
    torch.manual_seed(0)
    model = net().to("cuda")
    optimiser = sgd(model)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0 ** 12, growth_interval=4)
    losses, scales = [], []
    for step, (x, y) in enumerate(batches):
        with torch.autocast("cuda", torch.float16):
            loss = loss_of(model, x.to("cuda"), y.to("cuda"))
        before = model[3].weight.clone()
        optimiser.zero_grad(set_to_none=True)
        scaler.scale(loss * (float("inf") if step == 2 else 1)).backward()
        scaler.unscale_(optimiser)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimiser)
        scaler.update()
        check.expect(torch.equal(before, model[3].weight) == (step == 2), "the wrong step is passed over")
        losses.append(loss.detach())
        scales.append(scaler.get_scale())
        if step != 2:
            check.expect(bool(norm.isfinite()), "a norm is not finite")
    check.expect(scales[:8] == [4096.0, 4096.0] + [2048.0] * 4 + [4096.0] * 2, f"the scales are {scales}")
    check.note(torch.stack(losses), torch.tensor(scales), *model.parameters())
    return torch.stack(losses)


def accumulated(batches, kind):
    """The gradients of four small batches against those of one, under autocast."""
    torch.manual_seed(0)
    model = net().to("cuda")
    parts = [(x.to("cuda"), y.to("cuda")) for x, y in batches[:4]]
    with torch.autocast("cuda", kind):
        for x, y in parts:
            (loss_of(model, x, y) / 4).backward()
    got = [p.grad.clone() for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    with torch.autocast("cuda", kind):
        loss_of(model, *(torch.cat(part) for part in zip(*parts))).backward()
    for p, grad in zip(model.parameters(), got):
        check.close(f"an accumulated gradient in {kind}", grad, p.grad, 5e-2)
    check.note(*got)


check.repeatable()
pictures, labels = check.digits()
batches = [(pictures[i:i + 32], labels[i:i + 32]) for i in range(0, 640, 32)]
types()
check.compare(net, sgd, loss_of, batches[:2], 4e-2, torch.bfloat16, drift=2)
check.compare(net, sgd, loss_of, batches[:2], 1e-2, torch.float16, drift=2)
accumulated(batches, torch.float16)
accumulated(batches, torch.bfloat16)
losses = scaled(batches)
check.expect(losses[-4:].mean() < 0.7 * losses[0], "it does not learn")
check.finish()
