# SPDX-License-Identifier: Apache-2.0
"""Ranks that are frozen for longer than the timeout of their groups, over NCCL and over gloo: they use both, and wait at
the store, until a file is there. One of the operations is what PyTorch's watchdog looks at when they run on.
frozen.py TIMEOUT FILE"""
import datetime
import os
import sys
import time

import ranks
from ranks import check

import torch
import torch.distributed as dist


def main():
    timeout = datetime.timedelta(seconds=float(sys.argv[1]))
    rank, n = ranks.start("cpu:gloo,cuda:nccl")
    nccl, gloo = (dist.new_group(backend=name, timeout=timeout) for name in ("nccl", "gloo"))
    on_device, on_host = torch.ones(1000, device=ranks.device()), torch.ones(10)
    ended, step = torch.zeros(1), 0
    store = dist.distributed_c10d._get_default_store()
    # What they need is compiled and connected before their time runs.
    for _ in range(2):
        dist.all_reduce(on_device)
        on_device.div_(n)
        torch.cuda.synchronize()
    dist.all_reduce(on_device, group=nccl)
    on_device.div_(n)
    dist.all_reduce(on_host, group=gloo)
    on_host.div_(n)
    print("there", flush=True)
    longest, last = 0.0, time.monotonic()
    while not ended.item():
        dist.all_reduce(on_device, group=nccl)
        on_device.div_(n)
        torch.cuda.synchronize()
        dist.all_reduce(on_host, group=gloo)
        on_host.div_(n)
        # Rank 1 is late, and the other one waits for it by TCPStore: for most of the time.
        step += 1
        if rank:
            time.sleep(0.2)
            store.set(f"step {step}", "")
        else:
            store.wait([f"step {step}"], timeout)
        now = time.monotonic()
        longest, last = max(longest, now - last), now
        ended.fill_(os.path.exists(sys.argv[2]))
        dist.all_reduce(ended, dist.ReduceOp.MIN)
    time.sleep(0.5)         # for the watchdog to look once more
    check.same("what was added on the device", on_device, torch.ones(1000))
    check.same("what was added on the host", on_host, torch.ones(10))
    print(f"stood still for {longest:.0f} s", flush=True)
    ranks.finish()


if __name__ == "__main__":
    main()
