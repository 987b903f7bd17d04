# SPDX-License-Identifier: Apache-2.0
"""What the scripts of this folder share, beside check.py: nothing is loaded from the network or told to anyone."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TQDM_DISABLE="1")

import setuptools  # noqa: E402,F401  (DeepSpeed, which Accelerate looks for, loads distutils, which Python 3.13 has not)
import check  # noqa: E402  (before torch: it sets what torch reads)
import torch  # noqa: E402


def tokens(rows, length, vocabulary=100):
    """Rows of numbers that can be learned: each follows from the one before."""
    first = torch.randint(0, vocabulary, (rows, 1), generator=torch.Generator().manual_seed(3))
    return (first * 7 + torch.arange(length) * 3) % vocabulary
