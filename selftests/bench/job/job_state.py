#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""job_state.py - a rank that holds a state and notices how long it has stood still: job_state.py BACKEND MIB DIR

Its part of the state is random, on the device for nccl and on the CPU for gloo. It adds a number over all ranks
again and again. When DIR/mark.K is there it prints "mark K", and from then on "gap SECONDS" for each time between
two sums that is longer than any before. When rank 0 has seen DIR/save, all save their state by torch.save, synced,
and print "saved SECONDS". All end when rank 0 has seen DIR/end.
"""
import os
import sys
import time

import torch
import torch.distributed as dist


def say(text):
    """Both ranks may write to one file, and Python may write a line's end by itself."""
    os.write(1, (text + "\n").encode())


backend, size, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
os.environ.update(GLOO_SOCKET_IFNAME="lo", USE_LIBUV="0")
rank = int(os.environ["RANK"])
device = "cpu"
if backend == "nccl":
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
torch.set_num_threads(1)
dist.init_process_group(backend)
generator = torch.Generator(device="cpu").manual_seed(rank + 1)
words = (size << 20) // dist.get_world_size() // 8
state = torch.randint(-1 << 62, 1 << 62, (words,), generator=generator).to(device)
number = torch.ones(1, device=device)
say("ready")
longest, last, marks, saved, total = 1e9, time.monotonic(), 0, False, 0
SAVE, END = 100, 1000
while total < END:
    number.fill_(1)
    if rank == 0 and os.path.exists(f"{folder}/end"):
        number.fill_(END)
    elif rank == 0 and not saved and os.path.exists(f"{folder}/save"):
        number.fill_(SAVE)
    dist.all_reduce(number)
    total = number.item()
    now = time.monotonic()
    if now - last > longest:
        longest = now - last
        say(f"gap {longest:.6f}")
    if os.path.exists(f"{folder}/mark.{marks}"):
        say(f"mark {marks}")
        longest, marks = 0, marks + 1
    if SAVE <= total < END:
        saved, now = True, time.monotonic()
        with open(f"{folder}/state.{rank}", "wb") as out:
            torch.save(state, out)
            out.flush()
            os.fsync(out.fileno())
        say(f"saved {time.monotonic() - now:.6f}")
        dist.barrier()
        now = time.monotonic()
    last = now
    time.sleep(0.002)
dist.destroy_process_group()
