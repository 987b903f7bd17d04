# SPDX-License-Identifier: Apache-2.0
"""What the scripts of this folder share: results compared with the CPU's; the checksum of all that has to
be the same in two runs."""
import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))

import trained  # noqa: E402
from trained import digest, expect, finish, note  # noqa: E402,F401


def close(what, got, want, tolerance):
    """Each element is within tolerance times the largest element of what is wanted; got is noted."""
    trained.close(what, got, want, tolerance)
    note(got)
