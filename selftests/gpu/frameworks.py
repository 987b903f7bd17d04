# SPDX-License-Identifier: Apache-2.0
# frameworks.py - deep-learning frameworks on a GPU: what they start with, what a mini-batch costs.
#
# frameworks.py PART [ARG]: the parts are the functions below that have @part. It knows nothing of
# singvgpu. A line "checksum HEX" is to be the same in each run; "N ms/step" is measured. Exit status 4:
# the framework is not there. DEVICE=cpu tries what does without a GPU, with small sizes.
import faulthandler
import hashlib
import importlib.util
import os
import signal
import statistics
import struct
import sys
import time
import traceback

faulthandler.register(signal.SIGUSR2)  # check-gpu sends it to what does not end
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
DEVICE = os.environ.get("DEVICE", "cuda")
SMALL = DEVICE == "cpu"
parts = {}


def part(f):
    parts[f.__name__] = f
    return f


def need(name):
    if importlib.util.find_spec(name) is None:
        print("no", name)
        sys.exit(4)
    return importlib.import_module(name)


def bits(values):
    """Of floats, as hexadecimal digits: FNV-1a over their 8 bytes."""
    h = 0xCBF29CE484222325
    for v in values:
        for b in struct.pack("<d", float(v)):
            h = (h ^ b) * 0x100000001B3 % 2**64
    return f"{h:016x}"


def load_torch():
    torch = need("torch")
    if not SMALL and not torch.cuda.is_available():
        print("torch finds no GPU")
        sys.exit(4)
    torch.manual_seed(1)
    return torch


def finish(torch):
    if not SMALL:
        torch.cuda.synchronize()


def run_all(rungs):
    """Each rung by itself; returns what failed, and a summary."""
    said, failed = [], []
    for name, rung in rungs:
        began = time.monotonic()
        try:
            result = rung()
            ms = (time.monotonic() - began) * 1e3
            print(f"{name}: {ms:.1f} ms {result}", flush=True)
            said.append(f"{name} {ms:.0f}")
        except Exception as e:
            traceback.print_exc()
            print(f"{name}: FAILED: {type(e).__name__}: {str(e)[:200]}", flush=True)
            failed.append(name)
    return failed, " ".join(["ms:", *said, "; failed:", *(failed or ["none"])])


@part
def ladder():
    began = time.monotonic()
    torch = load_torch()
    print(f"import: {(time.monotonic() - began) * 1e3:.0f} ms, torch {torch.__version__}")
    F = torch.nn.functional
    n = 256 if SMALL else 4096
    sums = []

    def result(t):
        sums.append(t.float().sum().item())
        return sums[-1]

    def random(*shape, dtype=torch.bfloat16):
        return torch.randn(*shape, device=DEVICE, dtype=dtype)

    def matmul():
        a = random(n, n)
        return result(a @ a)

    def conv():
        y = F.conv2d(random(8, 64, 56, 56), random(64, 64, 3, 3), padding=1)
        return result(y)

    def sdpa():
        q = random(4, 8, 512, 64)
        return result(F.scaled_dot_product_attention(q, q, q, is_causal=True))

    def training():
        net = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(),
                                  torch.nn.Linear(1024, 10)).to(DEVICE)
        optimiser = torch.optim.AdamW(net.parameters(), lr=1e-3)
        x, y = random(256, 512, dtype=torch.float32), torch.arange(256, device=DEVICE) % 10
        for _ in range(30):
            optimiser.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            optimiser.step()
            sums.append(loss.item())
        return sums[-1]

    def copies(pinned):
        host = torch.arange(2**20 if SMALL else 2**26, dtype=torch.float32)
        if pinned and not SMALL:
            host = host.pin_memory()
        began = time.monotonic()
        there = host.to(DEVICE, non_blocking=pinned)
        finish(torch)
        middle = time.monotonic()
        back = there.cpu()
        end = time.monotonic()
        gb = host.numel() * 4 / 1e9
        assert torch.equal(host, back)
        return f"in {gb / (middle - began):.1f}, out {gb / (end - middle):.1f} GB/s"

    failed, said = run_all([("first", lambda: result(torch.ones(1000, device=DEVICE))),
                            ("matmul", matmul), ("again", matmul), ("conv", conv),
                            ("sdpa", sdpa), ("training", training),
                            ("pinned", lambda: copies(True)),
                            ("pageable", lambda: copies(False))])
    print("checksum", bits(sums))
    print(said)
    return bool(failed)


# ------------------------------------------------------------------------------- models


def resnet50(torch):
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, into, width, stride):
            super().__init__()
            out = width * 4
            self.path = nn.Sequential(
                nn.Conv2d(into, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True),
                nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width),
                nn.ReLU(True), nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out))
            self.side = nn.Identity() if into == out and stride == 1 else nn.Sequential(
                nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out))

        def forward(self, x):
            return torch.relu(self.path(x) + self.side(x))

    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True),
              nn.MaxPool2d(3, 2, 1)]
    into = 64
    for i, depth in enumerate((3, 4, 6, 3)):
        for k in range(depth):
            layers.append(Block(into, 64 << i, 2 if i and not k else 1))
            into = 256 << i
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(into, 1000))


def densenet169(torch):
    nn, growth = torch.nn, 32

    class Dense(nn.Module):
        def __init__(self, into):
            super().__init__()
            self.path = nn.Sequential(
                nn.BatchNorm2d(into), nn.ReLU(True), nn.Conv2d(into, 4 * growth, 1, bias=False),
                nn.BatchNorm2d(4 * growth), nn.ReLU(True),
                nn.Conv2d(4 * growth, growth, 3, 1, 1, bias=False))

        def forward(self, x):
            return torch.cat((x, self.path(x)), 1)

    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True),
              nn.MaxPool2d(3, 2, 1)]
    width = 64
    for i, depth in enumerate((6, 12, 32, 32)):
        for _ in range(depth):
            layers.append(Dense(width))
            width += growth
        if i < 3:
            layers += [nn.BatchNorm2d(width), nn.ReLU(True),
                       nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2)]
            width //= 2
    return nn.Sequential(*layers, nn.BatchNorm2d(width), nn.ReLU(True), nn.AdaptiveAvgPool2d(1),
                         nn.Flatten(), nn.Linear(width, 1000))


def transformer(torch, layers, width, heads, context, words, causal):
    nn, F = torch.nn, torch.nn.functional

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(),
                                     nn.Linear(4 * width, width))

        def attend(self, x):
            b, t, _ = x.shape
            q, k, v = (y.view(b, t, heads, width // heads).transpose(1, 2)
                       for y in self.qkv(x).split(width, 2))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
            return self.out(y.transpose(1, 2).reshape(b, t, width))

        def forward(self, x):
            if causal:  # GPT-2 normalises before, BERT behind
                x = x + self.attend(self.first(x))
                return x + self.mlp(self.second(x))
            x = self.first(x + self.attend(x))
            return self.second(x + self.mlp(x))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places = nn.Embedding(words, width), nn.Embedding(context, width)
            self.layers = nn.ModuleList(Layer() for _ in range(layers))
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, words, bias=False)
            self.head.weight = self.words.weight
            for p in self.parameters():
                if p.dim() > 1:
                    nn.init.normal_(p, std=0.02)

        def forward(self, tokens):
            x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x))

    return Model()


# name: batch, parameters in millions, what makes it
IMAGES = {"resnet50": (64, 25.6, resnet50), "densenet169": (64, 14.1, densenet169)}
TEXTS = {"bert": (32, 109, (12, 768, 12, 512, 30522, False)),
         "gpt2": (8, 124, (12, 768, 12, 1024, 50257, True)),
         "gpt2-xl": (2, 1558, (48, 1600, 25, 1024, 50257, True))}


def batch_of(torch, name):
    """A model and one mini-batch for it, of random weights and data."""
    if name in IMAGES:
        batch, millions, make = IMAGES[name]
        net = make(torch).to(DEVICE, memory_format=torch.channels_last)
        batch, side = (2, 64) if SMALL else (batch, 224)
        x = torch.randn(batch, 3, side, side, device=DEVICE).to(memory_format=torch.channels_last)
        y = torch.randint(1000, (batch,), device=DEVICE)
    else:
        batch, millions, shape = TEXTS[name]
        if SMALL:
            batch, shape = 1, (2, *shape[1:])
        with torch.device(DEVICE):
            net = transformer(torch, *shape)
            x = torch.randint(shape[4], (batch, 32 if SMALL else shape[3]))
        y = x.roll(-1, 1).flatten()
    count = sum(p.numel() for p in net.parameters()) / 1e6
    if not SMALL or name in IMAGES:
        assert abs(count - millions) < 0.02 * millions, f"{name}: {count} million parameters"
    return net, x, y, batch


@part
def model(name):
    """The median of at least 30 mini-batches of training with AdamW in bf16."""
    torch = load_torch()
    net, x, y, batch = batch_of(torch, name)
    optimiser = torch.optim.AdamW(net.parameters(), lr=1e-4)

    def step():
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, torch.bfloat16):
            out = net(x)
            loss = torch.nn.functional.cross_entropy(out.flatten(0, -2), y)
        loss.backward()
        optimiser.step()
        return loss

    for _ in range(1 if SMALL else 8):
        step().item()
    ms, end = [], time.monotonic() + 8
    while len(ms) < (3 if SMALL else 30) or (len(ms) < 100 and time.monotonic() < end):
        began = time.monotonic()
        loss = step()
        finish(torch)
        ms.append((time.monotonic() - began) * 1e3)
    loss = loss.item()
    # Without a wait for each step: the host works ahead, as in a training loop.
    began = time.monotonic()
    for _ in range(2 if SMALL else 20):
        step()
    finish(torch)
    ahead = (time.monotonic() - began) * 1e3 / (2 if SMALL else 20)
    print(f"{name}, batch {batch}: first {ms[0]:.2f}, least {min(ms):.2f} ms; "
          f"{ahead:.3f} ms without waits; loss {loss:.4f}")
    print(f"{name}: median of {len(ms)} {statistics.median(ms):.3f} ms/step")
    return not loss == loss


@part
def train(gigabytes):
    """200 steps with so many GB on the device; each loss as bits, so that runs can be compared."""
    torch = load_torch()
    torch.use_deterministic_algorithms(True)
    F = torch.nn.functional
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3), torch.nn.ReLU(), torch.nn.Flatten(),
                              torch.nn.Dropout(0.1), torch.nn.Linear(32 * 30 * 30, 10)).to(DEVICE)
    optimiser = torch.optim.AdamW(net.parameters(), lr=1e-3)
    x, y = torch.randn(64, 3, 32, 32, device=DEVICE), torch.arange(64, device=DEVICE) % 10
    # Random, so that it can neither be compressed nor be stored once.
    ballast = [torch.randint(2**62, (2**27 // (64 if SMALL else 1),), device=DEVICE)
               for _ in range(round(float(gigabytes) * 1e9 / 2**30))]
    losses = []
    for step in range(200):
        optimiser.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimiser.step()
        if ballast:
            ballast[step % len(ballast)].add_(step)
        losses.append(loss.item())
        print("loss", step, losses[-1].hex(), flush=True)
        time.sleep(0.02)
    for name, value in net.state_dict().items():
        values = value.double().flatten().tolist()
        print("tensor", name, hashlib.sha256(struct.pack(f"<{len(values)}d", *values)).hexdigest()[:16])
    # modulo 2^64, whatever the order
    losses += [t.sum().item() for t in ballast]
    print("checksum", bits(losses))


# ------------------------------------------------------------------- what builds on torch


@part
def triton():
    torch = load_torch()
    need("triton")
    import kernels_of_triton

    return kernels_of_triton.run(torch, DEVICE)


@part
def compile():
    torch = load_torch()
    net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(),
                              torch.nn.Linear(512, 256)).to(DEVICE)
    fast = torch.compile(net)
    x = torch.randn(64, 256, device=DEVICE)
    loss = fast(x).square().mean()
    loss.backward()
    far = (fast(x) - net(x)).abs().max().item()
    print(f"torch.compile: loss {loss.item():.6f}, differs by {far:.2g}")
    return not far < 1e-2


@part
def graphs():
    torch = load_torch()
    x = torch.ones(1024, 1024, device=DEVICE)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        y = (x @ x).sum()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x @ x).sum()
    for i in range(3):
        x.fill_(i)
        graph.replay()
    print("checksum", bits([y.item()]))
    began = time.monotonic()
    for _ in range(500):
        graph.replay()
    finish(torch)
    print(f"a graph of torch: {(time.monotonic() - began) * 2:.4f} ms/step")


@part
def profiler():
    torch = load_torch()
    from torch.profiler import ProfilerActivity, profile

    x = torch.randn(512, 512, device=DEVICE)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as p:
        for _ in range(5):
            y = x @ x
        finish(torch)
    kernels = [e.name for e in p.events() if "CUDA" in str(e.device_type)]
    print(f"profiler: {len(p.events())} events, {len(kernels)} of the device, {y.shape}")


@part
def nccl():
    torch = load_torch()
    import torch.distributed as dist

    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    dist.init_process_group("gloo" if SMALL else "nccl", rank=0, world_size=1)
    x = torch.arange(1 << 16, device=DEVICE, dtype=torch.float32)
    dist.all_reduce(x)
    dist.broadcast(x, 0)
    print("checksum", bits([x.sum().item()]))
    dist.destroy_process_group()
    print("NCCL", "of torch" if SMALL else torch.cuda.nccl.version(), "with one rank")


# ------------------------------------------------------------------------------- others


@part
def cupy():
    cp = need("cupy")
    cp.random.seed(1)
    a = cp.random.rand(512, 512, dtype=cp.float32)
    kernel = cp.ElementwiseKernel("float32 x", "float32 y", "y = x * x + 1", "squared")
    print("checksum", bits([kernel(a).sum(), (a @ a).trace(), cp.sort(a.ravel())[1000]]))
    print("CuPy", cp.__version__)


@part
def jax():
    jax = need("jax")
    import jax.numpy as jnp

    platform = jax.devices()[0].platform
    if platform not in ("gpu", "cuda") and not SMALL:
        print("JAX took", platform)
        return 1

    def loss(w, x):
        return jnp.mean(jnp.tanh(x @ w) ** 2)

    w, x = jnp.ones((256, 256)) / 256, jax.random.normal(jax.random.PRNGKey(1), (64, 256))
    step = jax.jit(lambda w, x: w - 0.1 * jax.grad(loss)(w, x))
    for _ in range(10):
        w = step(w, x)
    print("checksum", bits([loss(w, x)]))
    print("JAX", jax.__version__, "on", jax.devices()[0])


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in parts:
        print("usage: frameworks.py", "|".join(parts), "[ARG]", file=sys.stderr)
        sys.exit(2)
    sys.exit(parts[sys.argv[1]](*sys.argv[2:]))
