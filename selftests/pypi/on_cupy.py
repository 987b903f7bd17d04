# SPDX-License-Identifier: Apache-2.0
"""CuPy: k-means with kernels of its own, a heat equation by a raw kernel in a captured graph, sparse
conjugate gradients, and linear algebra, FFT, sorts and reductions; against NumPy and SciPy."""
import cupy as cp
import cupyx.scipy.sparse as sparse
import cupyx.scipy.sparse.linalg as solvers
import numpy as np

import check

random = np.random.default_rng(0)

# k-means
centres = random.normal(0, 5, (4, 2))
points = (centres[random.integers(0, 4, 4000)] + random.normal(0, 0.5, (4000, 2))).astype(np.float32)
distance = cp.ElementwiseKernel("T x, T y, T p, T q", "T d", "d = (x - p) * (x - p) + (y - q) * (y - q)",
                                "distance")


def k_means(xp, points):
    at = points[[0, 1000, 2000, 3000]]
    for _ in range(8):
        if xp is cp:
            d = distance(points[:, 0, None], points[:, 1, None], at[None, :, 0], at[None, :, 1])
        else:
            d = ((points[:, None] - at) ** 2).sum(2)
        nearest = d.argmin(1)
        at = xp.stack([points[nearest == k].mean(0) for k in range(4)])
    return nearest, at


got, want = k_means(cp, cp.asarray(points)), k_means(np, points)
check.expect((got[0].get() == want[0]).all(), "points belong to other centres")
check.close("centres", got[1].get(), want[1], 1e-5)

# heat
heat = cp.RawKernel(r"""
extern "C" __global__ void heat(const float *from, float *to, int n)
{
        __shared__ float tile[18][18];
        int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;

        for (int i = threadIdx.y * 16 + threadIdx.x; i < 18 * 18; i += 256) {
                int u = blockIdx.x * 16 + i % 18 - 1, v = blockIdx.y * 16 + i / 18 - 1;

                tile[i / 18][i % 18] = u >= 0 && v >= 0 && u < n && v < n ? from[v * n + u] : 0;
        }
        __syncthreads();
        const float (*t)[18] = &tile[threadIdx.y];
        int c = threadIdx.x;
        to[y * n + x] = t[1][c + 1] + 0.2f * (t[0][c + 1] + t[2][c + 1] + t[1][c] + t[1][c + 2] - 4 * t[1][c + 1]);
}""", "heat")
field = random.random((64, 64)).astype(np.float32)
a = cp.asarray(field)
b = cp.empty_like(a)
heat((4, 4), (16, 16), (a, b, np.int32(64)))
a = cp.asarray(field)
# The other stream waits for nothing by itself, and the first launch lasts until the kernel is compiled.
cp.cuda.Device().synchronize()
stream = cp.cuda.Stream(non_blocking=True)
with stream:
    stream.begin_capture()
    for _ in range(5):
        heat((4, 4), (16, 16), (a, b, np.int32(64)))
        heat((4, 4), (16, 16), (b, a, np.int32(64)))
    graph = stream.end_capture()
    for _ in range(4):
        graph.launch(stream)
stream.synchronize()
for _ in range(40):
    around = np.pad(field, 1)
    field = field + np.float32(0.2) * (around[:-2, 1:-1] + around[2:, 1:-1] + around[1:-1, :-2] +
                                       around[1:-1, 2:] - 4 * field)
check.close("the heat", a.get(), field, 1e-5)

# conjugate gradients
n = 400
poisson = sparse.diags([-np.ones(n - 1), 2.1 * np.ones(n), -np.ones(n - 1)], [-1, 0, 1], format="csr")
right = random.random(n)
x, failed = solvers.cg(poisson, cp.asarray(right), rtol=1e-10)
check.expect(not failed, "conjugate gradients do not converge")
check.close("what conjugate gradients solve", (poisson @ x).get(), right, 1e-6)

# the rest
m = random.random((64, 64))
g = cp.asarray(m)
check.close("a product", (g @ g.T).get(), m @ m.T, 1e-12)
check.close("a solution", cp.linalg.solve(g, g[:, :3]).get(), np.linalg.solve(m, m[:, :3]), 1e-9)
check.close("singular values", cp.linalg.svd(g, compute_uv=False).get(), np.linalg.svd(m, compute_uv=False), 1e-9)
check.close("a transform", cp.abs(cp.fft.fft2(g)).get(), np.abs(np.fft.fft2(m)), 1e-10)
check.close("a sort", cp.sort(g, None).get(), np.sort(m, None), 0)
check.close("a sum", cp.cumsum(g, 1).get(), np.cumsum(m, 1), 1e-12)
check.close("a histogram", cp.histogram(g, 16)[0].get(), np.histogram(m, 16)[0], 0)
check.close("a variance", g.var(0).get(), m.var(0), 1e-12)
check.finish()
