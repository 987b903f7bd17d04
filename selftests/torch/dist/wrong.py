# SPDX-License-Identifier: Apache-2.0
"""Ranks that err, started by this script in its own job; what the others are told. wrong.py [CASE]...

forgot    no rank calls set_device: all are on the first device, and train as on several
late      a rank does not come to a collective: wait() raises PyTorch's timeout (TORCH_NCCL_BLOCKING_WAIT)
watched   the same, where PyTorch's watchdog finds it, and ends the process, as it does by default
differs   ranks' tensors differ in size: both are told ranks and sizes
dies      a rank is killed within a collective: the other one is told
read      the same, and the other one reads the sum without asking for failures: it gets none, and an error"""
import datetime
import os
import signal
import socket
import subprocess
import sys

import ranks
from ranks import check

import torch
import torch.distributed as dist

N = 2


def begun(rank, timeout=ranks.PATIENCE, device=True):
    """A process group that has done something. What the first all_reduce needs is compiled before its time runs."""
    check.repeatable()
    if device:
        torch.cuda.set_device(rank)
    x = torch.ones(1000, device="cuda") * (rank + 1)
    torch.cuda.synchronize()
    dist.init_process_group("nccl", timeout=timeout)
    dist.all_reduce(x)
    check.same("all_reduce", x, torch.full((1000,), N * (N + 1) / 2))
    return x


def leave(text):
    """Without the end of the process group, which a failed one may not have."""
    print(text, flush=True)
    os._exit(0)


def forgot(rank):
    begun(rank, device=False)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 3).cuda())
    x = torch.randn(N, 6, 4, generator=torch.Generator().manual_seed(1))
    model(x[rank].cuda()).square().mean().backward()
    alone = torch.nn.Linear(4, 3)
    alone.load_state_dict(model.module.state_dict())
    alone(x.flatten(0, 1)).square().mean().backward()
    check.close("the gradient", model.module.weight.grad, alone.weight.grad, 1e-5)
    check.expect(torch.cuda.current_device() == 0, "a rank is on another device than it has asked for")
    dist.barrier()
    dist.destroy_process_group()
    leave("trained")


def late(rank):
    x = begun(rank, datetime.timedelta(seconds=30))
    if rank:
        leave(sys.stdin.read())
    try:
        dist.all_reduce(x)
        torch.cuda.synchronize()
    except dist.DistBackendError as error:
        leave(f"raised {error}")
    leave("an all_reduce has ended that not all ranks have joined")


def differs(rank):
    x = begun(rank)
    try:
        dist.all_reduce(x[:10 + rank])
        torch.cuda.synchronize()
        dist.all_reduce(x[:10])
    except dist.DistBackendError as error:
        leave(f"raised {error}")
    leave("an all_reduce has ended whose ranks differ")


def dies(rank):
    x = begun(rank)
    if rank:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.all_reduce(x)
        torch.cuda.synchronize()
    except dist.DistBackendError as error:
        leave(f"raised {error}")
    leave("an all_reduce has ended whose other rank is dead")


def read(rank):
    x = begun(rank)
    if rank:
        os.kill(os.getpid(), signal.SIGKILL)
    for how in (lambda: x[0].item(), x.cpu, torch.cuda.synchronize, x.clone().cpu):
        try:
            dist.all_reduce(x)
            leave(f"an all_reduce whose other rank is dead has given {how()}")
        except RuntimeError as error:
            print(f"raised {error}", flush=True)
    leave("nothing was read")


# Environment; then of each rank, its exit status and a part of what it says.
WAITS = {"TORCH_NCCL_BLOCKING_WAIT": "1"}
CASES = {
    "forgot": (forgot, {}, [(0, "trained")] * N),
    "late": (late, WAITS, [(0, "Timeout(ms)=30000) timed out in blocking wait"), (0, "")]),
    "watched": (late, {}, [(-signal.SIGABRT, "Watchdog caught collective operation timeout"), (0, "")]),
    "differs": (differs, WAITS, [(0, "has a count of 1")] * N),
    "read": (read, {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}, [(0, "nothing was read"), (-signal.SIGKILL, "")]),
    "dies": (dies, WAITS, [(0, "ncclRemoteError"), (-signal.SIGKILL, "")]),
}


def run(name):
    """Starts the ranks; the last one is let go when all others have ended."""
    _, more, wanted = CASES[name]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    names = {"WORLD_SIZE": N, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCH_NCCL_DUMP_ON_TIMEOUT": 0, **more}
    started = [subprocess.Popen([sys.executable, __file__, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True,
                                env={**os.environ, "RANK": str(rank), **{k: str(v) for k, v in names.items()}})
               for rank in range(N)]
    for rank, (process, (status, part)) in enumerate(zip(started, wanted)):
        said, _ = process.communicate()
        if process.returncode != status or part not in said:
            print(said)
        check.expect(process.returncode == status, f"{name}: rank {rank} has ended with {process.returncode}")
        check.expect(part in said, f"{name}: rank {rank} does not say {part!r}")


def main():
    if "RANK" in os.environ:
        CASES[sys.argv[1]][0](int(os.environ["RANK"]))
    for name in sys.argv[1:] or CASES:
        run(name)
    check.finish()


if __name__ == "__main__":
    main()
