# SPDX-License-Identifier: Apache-2.0
"""Ranks that one process of the job starts by torch.multiprocessing, each with a device of its own: a process
group that meets at a file, tensors on devices that processes share meanwhile. spawned.py [RANKS]"""
import os
import sys
import tempfile

import ranks
from ranks import check

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank, n, file, queue):
    os.environ["LOCAL_RANK"] = str(rank)
    ranks.start(init_method=f"file://{file}", rank=rank, world_size=n)
    x = torch.arange(1000.0, device=ranks.device()) * (rank + 1)
    dist.all_reduce(x)
    check.same("all_reduce", x, torch.arange(1000.0) * (n * (n + 1) // 2))
    parts = ranks.gathered(torch.tensor([rank], device=ranks.device()))
    check.expect([part.item() for part in parts] == list(range(n)), f"all_gather gave {parts}")
    if rank == 0:
        queue.put(x.cpu())
    check.note(x)
    ranks.finish()


def main():
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    with tempfile.TemporaryDirectory() as folder:
        queue = mp.get_context("spawn").SimpleQueue()
        ended = mp.spawn(work, (n, os.path.join(folder, "meet"), queue), n, join=False)
        total = queue.get()
        check.expect(total[1].item() == n * (n + 1) // 2, f"a rank has sent {total}")
        while not ended.join():
            pass


if __name__ == "__main__":
    main()
