# SPDX-License-Identifier: Apache-2.0
"""The profiler of PyTorch: operators, shapes, memory and ranges of a training step in its table and in
its trace; NVTX; what it asks of the GPU does not disturb the program."""
import json
import os
import tempfile

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

import check

check.repeatable()
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4)).to("cuda")
optimiser = torch.optim.Adam(model.parameters())
x = torch.randn(16, 32, device="cuda")


def step():
    with record_function("my step"):
        optimiser.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        optimiser.step()
    return loss.detach()


before = step()
activities = [ProfilerActivity.CPU]
if ProfilerActivity.CUDA in torch.profiler.supported_activities():
    activities.append(ProfilerActivity.CUDA)
ready = []
with profile(activities=activities, record_shapes=True, profile_memory=True,
             schedule=schedule(wait=1, warmup=1, active=2), on_trace_ready=ready.append) as run:
    for _ in range(4):
        loss = step()
        run.step()
check.expect(len(ready) == 1, f"{len(ready)} traces became ready")
table = {row.key: row for row in run.key_averages(group_by_input_shape=False)}
for name in ("my step", "aten::addmm", "aten::relu", "autograd::engine::evaluate_function: AddmmBackward0"):
    check.expect(name in table, f"the profile lacks {name}")
check.expect(table["my step"].count == 2, f"my step was seen {table['my step'].count} times, not twice")
check.expect(table["aten::addmm"].count == 4, f"addmm was seen {table['aten::addmm'].count} times, not 4")
check.expect("aten::addmm" in run.key_averages().table(sort_by="cpu_time_total"), "the table lacks addmm")

with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "trace.json")
    run.export_chrome_trace(path)
    events = json.load(open(path))["traceEvents"]
check.expect(any(event.get("name") == "my step" for event in events), "the trace lacks my step")

with torch.autograd.profiler.profile(use_device="cuda") as old:
    loss = step()
check.expect(any(event.name == "aten::relu" for event in old.function_events), "the older profiler lacks relu")
# Ranges for tools that listen; nobody does.
with torch.cuda.nvtx.range("a range"), torch.autograd.profiler.emit_nvtx():
    loss = step()
torch.cuda.nvtx.mark("a mark")
check.expect(torch.isfinite(loss).item(), "the loss is not finite")
check.note(before, loss, *model.parameters())
check.finish()
