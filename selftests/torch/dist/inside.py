# SPDX-License-Identifier: Apache-2.0
"""steps.py by ranks that the job starts itself, for tests that save it midway: each prints its number before its
lines. inside.py torchrun|spawn RANKS STEPS"""
import builtins
import os
import runpy
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def work(rank, n, steps):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(n), LOCAL_WORLD_SIZE=str(n))
    # A line is one write, since all ranks have the same pipe.
    builtins.print = lambda *what, **how: os.write(1, f"[{rank}] {' '.join(map(str, what))}\n".encode())
    sys.path.insert(0, HERE)
    sys.argv = ["steps.py", steps]
    runpy.run_path(os.path.join(HERE, "steps.py"), run_name="__main__")


def main():
    if "LOCAL_RANK" in os.environ and sys.argv[1] == "torchrun":
        work(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), sys.argv[3])
    elif sys.argv[1] == "torchrun":
        from torch.distributed.run import main as torchrun

        # The host may not find its own name.
        torchrun(["--nproc-per-node", sys.argv[2], "--standalone", "--local-addr", "127.0.0.1", os.path.abspath(__file__),
                  *sys.argv[1:]])
    else:
        import torch.multiprocessing as mp

        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29517")
        mp.spawn(work, (int(sys.argv[2]), sys.argv[3]), int(sys.argv[2]))


if __name__ == "__main__":
    main()
