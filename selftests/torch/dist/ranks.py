# SPDX-License-Identifier: Apache-2.0
"""What the scripts of this folder share, beside check.py: a process group over NCCL, the order in which
reductions add, and one checksum of what all ranks have noted."""
import datetime
import os
import sys
import warnings

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

# Of what this PyTorch does on Python 3.13, and of functions of its own that it deprecates and calls.
warnings.filterwarnings("ignore", category=FutureWarning)
warnings.filterwarnings("ignore", module="torch.distributed")

import check  # noqa: E402  (before torch: it sets what torch reads)
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

# A machine that does much else shall not make a collective late.
PATIENCE = datetime.timedelta(minutes=20)


def device():
    return torch.device("cuda", torch.cuda.current_device())


def start(backend="nccl", timeout=PATIENCE, **options):
    """This process's rank and the number of ranks."""
    check.repeatable()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    if "RANKS_EAGER" in os.environ:     # communicators at once; those of subsets are split off
        options["device_id"] = device()
    dist.init_process_group(backend, timeout=timeout, **options)
    return dist.get_rank(), dist.get_world_size()


def finish():
    """The first rank prints one checksum for all."""
    torch.cuda.synchronize()
    digests = [None] * dist.get_world_size()
    dist.all_gather_object(digests, check.digest.hexdigest())
    rank = dist.get_rank()
    dist.barrier()
    dist.destroy_process_group()
    warnings.simplefilter("ignore")     # of what is left at the end, which join() has asked for
    check.digest.update(" ".join(digests).encode())
    if rank == 0:
        check.finish()


def tree(parts):
    """The sum of the ranks' tensors, in the order of docs/collectives.md."""
    if len(parts) == 1:
        return parts[0]
    half = 1 << (len(parts) - 1).bit_length() - 1
    return tree(parts[:half]) + tree(parts[half:])


def gathered(tensor):
    """This tensor of all ranks, on the CPU."""
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor.detach().contiguous())
    return [part.cpu() for part in parts]


def alike(what, tensor):
    """All ranks have the same bits."""
    for part in gathered(tensor):
        check.same(what, part, tensor)
