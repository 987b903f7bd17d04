# SPDX-License-Identifier: Apache-2.0
# kernels_of_triton.py - a kernel of Triton; apart, as Triton reads its source from a module.
import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)


@triton.jit
def dot(a, b, out, N: tl.constexpr):
    r = tl.arange(0, N)
    at = r[:, None] * N + r[None, :]
    tl.store(out + at, tl.dot(tl.load(a + at), tl.load(b + at)))


def run(torch, device):
    x, y = (torch.randn(100000, device=device) for _ in range(2))
    out = torch.empty_like(x)
    add[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), BLOCK=1024)
    a, b = (torch.randn(64, 64, device=device, dtype=torch.bfloat16) for _ in range(2))
    c = torch.empty(64, 64, device=device)
    dot[(1,)](a, b, c, N=64)
    right = torch.equal(out, x + y) and torch.allclose(c, a.float() @ b.float(), atol=0.1, rtol=0.1)
    print("Triton", triton.__version__, "right" if right else "WRONG")
    return not right
