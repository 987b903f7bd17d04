# SPDX-License-Identifier: Apache-2.0
"""What the scripts of this folder share: results compared with the CPU's; the checksum of all that has to
be the same in two runs."""
import hashlib
import sys

import numpy as np

digest = hashlib.sha256()


def expect(condition, what):
    if not condition:
        print("FAIL", what, flush=True)
        sys.exit(1)


def close(what, got, want, tolerance):
    """Each element is within tolerance times the largest element of what is wanted; got is noted."""
    got, want = np.asarray(got), np.asarray(want)
    expect(got.shape == want.shape, f"{what} has shape {got.shape}, not {want.shape}")
    expect(np.isfinite(got).all(), f"{what} has infinite elements")
    error = np.abs(got.astype(np.float64) - want).max(initial=0) / max(np.abs(want).max(initial=0), 1e-6)
    expect(error <= tolerance, f"{what} differs from the CPU's by {error:.2e}, more than {tolerance:.0e}")
    note(got)


def note(*arrays):
    """Adds arrays to the checksum."""
    for array in map(np.asarray, arrays):
        digest.update(str((array.dtype, array.shape)).encode())
        digest.update(array.tobytes())


def finish():
    print("checksum", digest.hexdigest()[:16])
    print("PASS", sys.argv[0].rsplit("/", 1)[-1], flush=True)
