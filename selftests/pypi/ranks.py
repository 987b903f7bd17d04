# SPDX-License-Identifier: Apache-2.0
"""CuPy over NCCL: cupyx.distributed, and NCCL's functions as cupy.cuda.nccl has them, with a process for each device
(singvgpu run -n), or one process with all devices by a group. Sums to the bit, in the order of
docs/collectives.md; least squares by ranks that have a part of the rows each, against NumPy."""
import os

import cupy as cp
import numpy as np
from cupy.cuda import nccl
from cupyx.distributed import NCCLBackend

import check

RANK, RANKS = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
TYPES = np.float32, np.float64, np.float16, np.int32, np.int64, np.uint8
NCCL_TYPES = {"f4": nccl.NCCL_FLOAT32, "f8": nccl.NCCL_FLOAT64, "i4": nccl.NCCL_INT32}


def of(n, dtype):
    """The arrays of n ranks."""
    random = np.random.default_rng(3)
    a = random.normal(0, 1, (n, n, 7)) if np.dtype(dtype).kind == "f" else random.integers(0, 9, (n, n, 7))
    return a.astype(dtype)


def tree_sum(parts):
    if len(parts) == 1:
        return parts[0]
    half = 1 << (len(parts) - 1).bit_length() - 1
    return tree_sum(parts[:half]) + tree_sum(parts[half:])


def total_of(a):
    return tree_sum(list(a.astype(np.float32) if a.dtype == np.float16 else a)).astype(a.dtype)


def same(what, got, want):
    got = cp.asnumpy(got)
    check.expect(got.dtype == want.dtype and got.shape == want.shape, f"{what} is {got.dtype}{got.shape}")
    check.expect(got.tobytes() == want.tobytes(), f"{what} has other bits")
    check.note(got)


def operations(comm):
    """Each operation of cupyx.distributed, of every type."""
    for dtype in TYPES:
        a, name = of(RANKS, dtype), np.dtype(dtype).name
        x = cp.asarray(a[RANK])
        y, one = cp.empty_like(x), cp.empty_like(x[0])
        for op, want in ("sum", total_of(a)), ("max", a.max(0)), ("min", a.min(0)):
            comm.all_reduce(x, y, op)
            same(f"all_reduce {op} of {name}", y, want)
        y.fill(0)
        comm.reduce(x, y, RANKS - 1)
        same(f"reduce of {name}", y, total_of(a) if RANK == RANKS - 1 else np.zeros_like(a[0]))
        y[:] = x
        comm.broadcast(y, 1)
        same(f"broadcast of {name}", y, a[1])
        comm.reduce_scatter(x, one, one.size)
        same(f"reduce_scatter of {name}", one, total_of(a)[RANK])
        comm.all_gather(x[0], y, one.size)
        same(f"all_gather of {name}", y, a[:, 0])
        comm.all_to_all(x, y)
        same(f"all_to_all of {name}", y, a[:, RANK])
        comm.gather(x[0], y, 0)
        same(f"gather of {name}", y, a[:, 0] if RANK == 0 else a[:, RANK])
        comm.scatter(x, one, 1)
        same(f"scatter of {name}", one, a[1, RANK])
    comm.barrier()


def least_squares(comm):
    """Gradient descent on a part of the rows; what it ends with is the same on all ranks."""
    random = np.random.default_rng(5)
    rows, right = random.random((64 * RANKS, 6)), random.random(64 * RANKS)
    own, own_right = cp.asarray(rows[RANK::RANKS]), cp.asarray(right[RANK::RANKS])
    x, summed = cp.zeros(6), cp.empty(6)
    for _ in range(3000):
        grad = own.T @ (own @ x - own_right)
        comm.all_reduce(grad, summed)
        x -= summed * (0.4 / len(rows))
    check.close("least squares", x.get(), np.linalg.lstsq(rows, right, rcond=None)[0], 1e-4)
    comm.broadcast(summed, 0)


def one_process():
    """All devices of this process, by groups; a communicator is made for each in one call."""
    n = cp.cuda.runtime.getDeviceCount()
    check.expect(n > 1, f"there are {n} devices")
    comms = nccl.NcclCommunicator.initAll(n)
    check.expect([c.rank_id() for c in comms] == list(range(n)), "ranks")
    for code, kind in NCCL_TYPES.items():
        a, x, y = of(n, code), [], []
        for i in range(n):
            with cp.cuda.Device(i):
                x.append(cp.asarray(a[i]))
                y.append(cp.empty_like(x[i]))
        nccl.groupStart()
        for i in range(n):
            with cp.cuda.Device(i):
                comms[i].allReduce(x[i].data.ptr, y[i].data.ptr, x[i].size, kind, nccl.NCCL_SUM,
                                   cp.cuda.Stream.null.ptr)
        nccl.groupEnd()
        for i in range(n):
            with cp.cuda.Device(i):
                cp.cuda.Stream.null.synchronize()
                same(f"allReduce of {code}", y[i], total_of(a))
    for comm in comms:
        comm.destroy()


check.expect(nccl.get_version() >= 22000, f"NCCL {nccl.get_version()}")
if RANKS == 1:
    one_process()
else:
    cp.cuda.Device(RANK).use()
    comm = NCCLBackend(RANKS, RANK, host="127.0.0.1", port=int(os.environ["MASTER_PORT"]))
    operations(comm)
    least_squares(comm)
    comm.stop()
if RANK == 0:
    check.finish()
