# SPDX-License-Identifier: Apache-2.0
"""PyTorch from its start-up to the first kernels of what training scripts use, a line for each step.

No step reads a result: under the profile h100 kernels are recorded, not run. Arguments: steps, default all."""
import gc
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

DEV = "cuda"
STEPS = []


def step(f):
    STEPS.append(f)
    return f


def rand(*shape, **kw):
    return torch.randn(*shape, device=DEV, **kw)


@step
def device():
    torch.cuda.mem_get_info()
    assert torch.cuda.get_device_capability() == (9, 0)
    assert "H100" in torch.cuda.get_device_name()


@step
def products():
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        a = rand(256, 256, dtype=dtype)
        a @ a
    torch.backends.cuda.matmul.allow_tf32 = True
    a = rand(1024, 1024)
    a @ a
    a = torch.zeros(256, 256, device=DEV).to(torch.float8_e4m3fn)
    one = torch.ones((), device=DEV)
    torch._scaled_mm(a, a.t(), one, one, out_dtype=torch.bfloat16)
    rand(4096, 4096, dtype=torch.bfloat16).mm(rand(4096, 4096, dtype=torch.bfloat16))


@step
def convolutions():
    m = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3), nn.BatchNorm2d(64), nn.ReLU(),
                      nn.MaxPool2d(3, 2, 1), nn.Conv2d(64, 64, 3, padding=1))
    m = m.to(DEV, memory_format=torch.channels_last)
    x = rand(8, 3, 64, 64).contiguous(memory_format=torch.channels_last)
    with torch.autocast(DEV, torch.bfloat16):
        y = m(x)
    y.float().sum().backward()


@step
def attention():
    q = rand(2, 4, 128, 64, dtype=torch.bfloat16, requires_grad=True)
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION,
                    SDPBackend.MATH, SDPBackend.CUDNN_ATTENTION):
        with sdpa_kernel(backend):
            F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()


@step
def training():
    m = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Dropout(0.1),
                      nn.Linear(64, 8)).to(DEV)
    opt = torch.optim.AdamW(m.parameters())
    for _ in range(3):
        loss = F.cross_entropy(m(rand(32, 64)), torch.zeros(32, dtype=torch.long, device=DEV))
        opt.zero_grad()
        loss.backward()
        opt.step()
        loss.item()


@step
def half_precision():
    m = nn.Linear(64, 64).to(DEV)
    scaler = torch.amp.GradScaler(DEV)
    opt = torch.optim.SGD(m.parameters(), lr=0.1)
    with torch.autocast(DEV, torch.float16):
        loss = m(rand(16, 64)).square().mean()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()


@step
def recurrent():
    nn.LSTM(16, 16, 2).to(DEV)(rand(5, 3, 16))[0].sum().backward()


@step
def fourier():
    torch.fft.fft(rand(64, 64))


@step
def graphs():
    m, x = nn.Linear(64, 64).to(DEV), rand(8, 64)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            m(x)
    torch.cuda.current_stream().wait_stream(side)
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        m(x)
    for _ in range(5):
        g.replay()
    m = nn.Sequential(nn.Linear(32, 32), nn.ReLU()).to(DEV)
    m = torch.cuda.make_graphed_callables(m, (rand(4, 32, requires_grad=True),))
    m(rand(4, 32, requires_grad=True)).sum().backward()


@step
def copies():
    x = torch.randn(1 << 20).pin_memory().to(DEV, non_blocking=True)
    x.to("cpu", non_blocking=True)
    torch.randn(1 << 20).to(DEV)
    x.cpu()


@step
def streams():
    a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    s = torch.cuda.Stream(priority=-1)
    a.record(s)
    with torch.cuda.stream(s):
        torch.ones(1000, device=DEV).mul_(2)
    b.record(s)
    s.synchronize()
    a.elapsed_time(b)


@step
def memory():
    x = torch.empty(1 << 28, device=DEV)
    del x
    torch.cuda.empty_cache()
    torch.cuda.memory_snapshot()
    try:
        torch.empty(1 << 44, device=DEV)
    except torch.OutOfMemoryError:
        pass


@step
def generators():
    torch.cuda.manual_seed(3)
    torch.cuda.set_rng_state(torch.cuda.get_rng_state())
    F.dropout(torch.ones(100, device=DEV))


@step
def loader():
    data = torch.utils.data.TensorDataset(torch.randn(64, 4))
    for (x,) in torch.utils.data.DataLoader(data, 16, num_workers=2, pin_memory=True):
        x.to(DEV, non_blocking=True)


@step
def profiler():
    kinds = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA]) as p:
        torch.ones(100, device=DEV).add_(1)
        torch.cuda.synchronize()
    assert any(e.key == "aten::add_" for e in p.key_averages())


@step
def runtime_compilation():
    torch.cuda.jiterator._create_jit_fn("template <typename T> T f(T x) { return x * x; }")(
        torch.ones(4, device=DEV))


@step
def compiled():
    def f(x, w):
        return torch.relu(x @ w).sum()

    torch.compile(f)(rand(64, 64), rand(64, 64))
    m = torch.compile(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)).to(DEV))
    m(rand(8, 64)).sum().backward()


for f in STEPS:
    if sys.argv[1:] and f.__name__ not in sys.argv[1:]:
        continue
    f()
    torch.cuda.synchronize()
    gc.collect()  # not by a worker: a fork's child can free no memory of the device
    print(f.__name__, flush=True)
print("PASS")
