# SPDX-License-Identifier: Apache-2.0
"""torch.save and torch.load: training that goes on from a file gives the same bits as training that
was not interrupted; tensors of all types, views and storages; from the GPU to the CPU and back."""
import io
import os
import tempfile

import torch
from torch import nn
from torch.nn import functional as F

import check


def made():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2),
                          nn.Linear(32, 4)).to("cuda")
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return model, optimiser, torch.optim.lr_scheduler.StepLR(optimiser, 3, 0.5)


def steps(model, optimiser, rate, some):
    losses = []
    for x, y in some:
        loss = F.cross_entropy(model(x.to("cuda")), y.to("cuda"))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        rate.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def goes_on(folder):
    chosen = torch.Generator().manual_seed(0)
    batches = [(torch.randn(16, 16, generator=chosen), torch.randint(4, (16,), generator=chosen))
               for _ in range(10)]
    training = made()
    steps(*training, batches[:5])
    path = os.path.join(folder, "half.pt")
    torch.save({"parts": [part.state_dict() for part in training],
                "random": torch.cuda.get_rng_state()}, path)
    wanted = steps(*training, batches[5:])

    again = made()
    saved = torch.load(path, map_location="cuda", weights_only=True)
    for part, state in zip(again, saved["parts"]):
        part.load_state_dict(state)
    torch.cuda.set_rng_state(saved["random"].cpu())
    check.same("the losses after a load", steps(*again, batches[5:]), wanted)
    for ours, theirs in zip(again[0].state_dict().values(), training[0].state_dict().values()):
        check.same("a weight after a load", ours, theirs)
    check.note(wanted)

    on_cpu = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    check.expect(all(value.device.type == "cpu" for value in on_cpu["parts"][0].values()),
                 "a tensor is not on the CPU")


def all_types():
    """There and back, for each type."""
    kinds = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16,
             torch.int32, torch.int64, torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn,
             torch.float8_e5m2)
    for kind in kinds:
        there = (torch.arange(24) % 7 - 3).to(torch.float32).to(kind).reshape(4, 6).to("cuda")
        file = io.BytesIO()
        torch.save(there, file)
        file.seek(0)
        back = torch.load(file, weights_only=True)
        check.expect(back.device == there.device and back.dtype == kind, f"{kind} came back as {back.dtype}")
        check.expect(torch.equal(back.cpu().view(torch.uint8), there.cpu().view(torch.uint8)),
                     f"{kind} came back with other bits")

    # Two views of one storage are two views of one storage again.
    whole = torch.arange(12.0, device="cuda")
    file = io.BytesIO()
    torch.save([whole, whole[2:8].view(2, 3).t()], file)
    file.seek(0)
    base, view = torch.load(file, weights_only=True)
    base.add_(1)
    check.same("a view of what was loaded", view, (torch.arange(12.0) + 1)[2:8].view(2, 3).t())


check.repeatable()
with tempfile.TemporaryDirectory() as folder:
    goes_on(folder)
all_types()
check.finish()
