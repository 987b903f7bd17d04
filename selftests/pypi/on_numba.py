# SPDX-License-Identifier: Apache-2.0
"""numba-cuda: a tiled product, a sum by blocks, an atomic histogram, N bodies, a Monte-Carlo estimate of
pi with xoroshiro generators, and a Game of Life over cooperative groups; against NumPy."""
import _numba_cuda_redirector  # noqa: F401  (what pip's site folders do: numba.cuda is numba-cuda's)
import numpy as np
from numba import cuda, float32
from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float32

import check

TILE = 16
random = np.random.default_rng(0)


@cuda.jit
def product(a, b, c):
    left, right = cuda.shared.array((TILE, TILE), float32), cuda.shared.array((TILE, TILE), float32)
    x, y = cuda.grid(2)
    s = float32(0)
    for t in range(a.shape[1] // TILE):
        left[cuda.threadIdx.x, cuda.threadIdx.y] = a[x, t * TILE + cuda.threadIdx.y]
        right[cuda.threadIdx.x, cuda.threadIdx.y] = b[t * TILE + cuda.threadIdx.x, y]
        cuda.syncthreads()
        for k in range(TILE):
            s += left[cuda.threadIdx.x, k] * right[k, cuda.threadIdx.y]
        cuda.syncthreads()
    c[x, y] = s


@cuda.reduce
def total(a, b):
    return a + b


@cuda.jit
def histogram(values, bins):
    for i in range(cuda.grid(1), values.size, cuda.gridsize(1)):
        cuda.atomic.add(bins, int(values[i] * bins.size), 1)


@cuda.jit(device=True, inline=True)
def pull(d):
    r2 = d[0] * d[0] + d[1] * d[1] + float32(0.01)
    return float32(1) / (r2 * r2 ** float32(0.5))


@cuda.jit
def bodies(at, speed, dt):
    i = cuda.grid(1)
    ax = ay = float32(0)
    for j in range(at.shape[0]):
        d = (at[j, 0] - at[i, 0], at[j, 1] - at[i, 1])
        p = pull(d)
        ax += d[0] * p
        ay += d[1] * p
    speed[i, 0] += ax * dt
    speed[i, 1] += ay * dt


@cuda.jit
def darts(states, hits):
    i = cuda.grid(1)
    inside = 0
    for _ in range(200):
        x, y = xoroshiro128p_uniform_float32(states, i), xoroshiro128p_uniform_float32(states, i)
        inside += x * x + y * y < 1
    hits[i] = inside


@cuda.jit
def life(a, b, steps):
    g = cuda.cg.this_grid()
    x, y = cuda.grid(2)
    n, m = a.shape
    for _ in range(steps):
        near = 0
        for u in range(-1, 2):
            for v in range(-1, 2):
                if u or v:
                    near += a[(x + u) % n, (y + v) % m]
        b[x, y] = near == 3 or (near == 2 and a[x, y])
        g.sync()
        a[x, y] = b[x, y]
        g.sync()


a, b = random.random((2, 64, 64)).astype(np.float32)
c = cuda.device_array((64, 64), np.float32)
product[(4, 4), (TILE, TILE)](a, b, c)
check.close("the product", c.copy_to_host(), a @ b, 1e-5)

values = random.random(20000)
check.close("the sum", total(values), values.sum(), 1e-12)
bins = np.zeros(32, np.int32)
histogram[16, 128](values, bins)
check.close("the histogram", bins, np.histogram(values, 32, (0, 1))[0], 0)

at, speed = random.normal(0, 1, (2, 256, 2)).astype(np.float32)
want = speed.astype(np.float64)
d = at[None].astype(np.float64) - at[:, None]
r2 = (d ** 2).sum(2) + 0.01
want += 0.1 * (d / r2[:, :, None] ** 1.5).sum(1)
bodies[2, 128](at, speed, np.float32(0.1))
check.close("the speeds", speed, want, 1e-4)

hits = np.zeros(512, np.int32)
darts[4, 128](create_xoroshiro128p_states(512, seed=1), hits)
check.expect(abs(4 * hits.sum() / (512 * 200) - np.pi) < 0.02, "pi is something else")
check.note(hits)

cells = random.integers(0, 2, (32, 32)).astype(np.int32)
got = cells.copy()
life[(2, 2), (16, 16)](got, np.zeros_like(got), 10)
for _ in range(10):
    near = sum(np.roll(cells, (u, v), (0, 1)) for u in (-1, 0, 1) for v in (-1, 0, 1)) - cells
    cells = ((near == 3) | ((near == 2) & (cells == 1))).astype(np.int32)
check.close("the cells", got, cells, 0)
check.finish()
