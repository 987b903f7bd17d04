# SPDX-License-Identifier: Apache-2.0
"""tinygrad: a convolutional network trained by its own Adam, step by step under TinyJit, against the same
on tinygrad's CPU; reductions, gathers and a half-precision product against NumPy."""
import os

import numpy as np

# without processes that compile, which it leaves behind
os.environ.update(DEV="CUDA", TRAINING="1", PARALLEL="0")
from tinygrad import Device, Tensor, TinyJit, dtypes, nn  # noqa: E402

import check

check.expect(Device.DEFAULT == "CUDA", f"tinygrad works on {Device.DEFAULT}")
random = np.random.default_rng(0)
shapes = random.random((10, 1, 8, 8)) > 0.6
labels = random.integers(0, 10, 512).astype(np.int32)
pictures = (shapes[labels] + random.normal(0, 0.4, (512, 1, 8, 8))).astype(np.float32)
first = random.normal(0, 0.3, (8, 1, 3, 3)).astype(np.float32)
last = random.normal(0, 0.1, (128, 10)).astype(np.float32)


def train(device, steps):
    weights = [Tensor(w, device=device) for w in (first, last)]
    adam = nn.optim.Adam(weights, lr=3e-3)

    def answer(x):
        return x.conv2d(weights[0], padding=1).relu().max_pool2d(2).flatten(1) @ weights[1]

    @TinyJit
    def step(x, y):
        adam.zero_grad()
        loss = answer(x).sparse_categorical_crossentropy(y).backward()
        return loss.realize(*adam.schedule_step())

    losses = []
    for i in range(steps):
        part = slice(i % 12 * 32, i % 12 * 32 + 32)
        losses.append(step(Tensor(pictures[part], device=device), Tensor(labels[part], device=device)).item())
    right = (answer(Tensor(pictures[384:], device=device)).argmax(1).numpy() == labels[384:]).mean()
    return np.array(losses), [w.numpy() for w in weights], right


got, want = train("CUDA", 8), train("CPU", 8)
check.close("the losses", got[0], want[0], 1e-4)
for i in range(2):
    check.close(f"weight {i}", got[1][i], want[1][i], 1e-3)
losses, _, right = train("CUDA", 72)
check.expect(right > 0.9, f"it is right in {right:.0%} only")
check.note(losses)

a = random.random((48, 32)).astype(np.float32)
t = Tensor(a)
check.close("a softmax", t.softmax(1).numpy(), np.exp(a) / np.exp(a).sum(1, keepdims=True), 1e-5)
check.close("a sum", t.cumsum(0).numpy(), a.cumsum(0), 1e-5)
check.close("rows", t[Tensor(np.array([5, 1, 5]))].numpy(), a[[5, 1, 5]], 0)
half = t.cast(dtypes.half)
check.close("a product of halves", (half @ half.T).float().numpy(), a @ a.T, 5e-3)
check.finish()
