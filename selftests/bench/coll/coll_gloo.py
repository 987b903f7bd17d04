#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""coll_gloo.py - all-reduces of f32 by gloo, for bench-coll: coll_gloo.py RANK RANKS PORT BYTES:TIMES ...

Rank 0 prints for each the best of 10 means, in microseconds, as coll_mpi.c does.
"""
import os
import sys
import time

import torch
import torch.distributed as dist

rank, ranks, port = (int(a) for a in sys.argv[1:4])
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo", USE_LIBUV="0")
dist.init_process_group("gloo", rank=rank, world_size=ranks)
for arg in sys.argv[4:]:
    size, times = (int(a) for a in arg.split(":"))
    data, took = torch.zeros(size // 4), []
    for _ in range(11):
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(times):
            dist.all_reduce(data)
        took.append((time.perf_counter() - begin) / times * 1e6)
    if rank == 0:
        print(f"{min(took[1:]):.4f}", flush=True)
dist.destroy_process_group()
