# SPDX-License-Identifier: Apache-2.0
"""What check.py of selftests/jax, tensorflow and pypi share: results compared with the CPU's, the checksum of
all that has to be the same in two runs, and data to learn from."""
import hashlib
import sys

import numpy as np

digest = hashlib.sha256()


def expect(condition, what):
    if not condition:
        print("FAIL", what, flush=True)
        sys.exit(1)


def numpy(x):
    x = np.asarray(x)
    return x if x.dtype.kind in "biufc" else x.astype(np.float32)


def close(what, got, want, tolerance):
    """Each element is within tolerance times the largest element of what is wanted."""
    got, want = numpy(got).astype(np.float64), numpy(want).astype(np.float64)
    expect(got.shape == want.shape, f"{what} has shape {got.shape}, not {want.shape}")
    expect(np.isfinite(got).all(), f"{what} has infinite elements")
    error = np.abs(got - want).max(initial=0) / max(np.abs(want).max(initial=0), 1e-6)
    expect(error <= tolerance, f"{what} differs from the CPU's by {error:.2e}, more than {tolerance:.0e}")


def note(*arrays):
    """Adds arrays to the checksum."""
    for array in map(np.asarray, arrays):
        digest.update(str((array.dtype, array.shape)).encode())
        digest.update(array.tobytes())


def finish():
    print("checksum", digest.hexdigest()[:16])
    print("PASS", sys.argv[0].rsplit("/", 1)[-1], flush=True)


def pictures(n, size=8, classes=10):
    """n noisy pictures of so many shapes: arrays n x size x size x 1, and what they show."""
    random = np.random.default_rng(0)
    shapes = random.random((classes, size, size, 1)) > 0.6
    labels = random.integers(0, classes, n)
    noise = random.normal(0, 0.4, (n, size, size, 1))
    return (shapes[labels] + noise).astype(np.float32), labels.astype(np.int32)


def batches(arrays, size):
    n = len(arrays[0])
    return [tuple(a[i:i + size] for a in arrays) for i in range(0, n - size + 1, size)]
