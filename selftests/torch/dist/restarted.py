# SPDX-License-Identifier: Apache-2.0
"""The training of launched.py, in which rank 1 fails before its step 3 in the first ROUNDS rounds; torchrun, which is
in the job, starts both ranks again, once. The rank waits for the file GO before it fails. The first that is run is
torchrun itself: restarted.py ROUNDS STEPS GO"""
import os
import sys
import time

import launched
import ranks
import torch.distributed as dist

ROUND = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
FAILS = 3


def say(*what):
    # A line is one write, since both ranks have the same pipe.
    os.write(1, (" ".join(map(str, what)) + "\n").encode())


def work(rounds, steps, go):
    # The other one shall ask the store before this rank has told it anything in this round.
    if ROUND and os.environ["RANK"] == "0":
        time.sleep(5)
    rank, n = ranks.start()

    def before(step):
        if ROUND < rounds and step == FAILS and rank == 1:
            while not os.path.exists(go):
                time.sleep(0.05)
            os._exit(7)

    def after(step, loss):
        if ROUND < rounds and step == FAILS:    # the sums of this step are nothing; torchrun ends this rank
            time.sleep(600)
        dist.all_reduce(total := loss.detach() / n)
        say(f"round {ROUND} rank {rank} step {step} loss {loss.item().hex()} of all {total.item().hex()}")

    launched.trained(rank, n, steps, before, after)
    ranks.finish()


if __name__ == "__main__":
    if "LOCAL_RANK" in os.environ:
        work(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    else:
        from torch.distributed.run import main as torchrun

        torchrun(["--nproc-per-node", "2", "--standalone", "--max-restarts", "1", os.path.abspath(__file__), *sys.argv[1:]])
