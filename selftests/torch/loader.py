# SPDX-License-Identifier: Apache-2.0
"""DataLoader: workers that are forked and spawned bring the same batches as none, from pinned memory,
to a model that is trained meanwhile; tensors pass between processes; an epoch ended early."""
import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import data

import check


class Digits(data.Dataset):
    """Pictures with noise of their own, made by the worker."""

    def __init__(self):
        self.pictures, self.labels = check.digits()

    def __len__(self):
        return 512

    def __getitem__(self, i):
        noise = torch.randn(1, 8, 8, generator=torch.Generator().manual_seed(i))
        return self.pictures[i] + 0.1 * noise, self.labels[i]


class Rows(data.IterableDataset):
    """Each worker brings its part."""

    def __iter__(self):
        worker = data.get_worker_info()
        yield from range(worker.id, 40, worker.num_workers)


def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def epochs(digits, count, **how):
    """Losses of two epochs, and whether the batches were pinned."""
    torch.manual_seed(0)
    model = net().to("cuda")
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    order = torch.Generator()
    loader = data.DataLoader(digits, 32, sampler=data.RandomSampler(digits, generator=order),
                             num_workers=count, pin_memory=True, persistent_workers=count > 0, **how)
    losses = []
    for epoch in range(2):
        order.manual_seed(epoch)
        for x, y in loader:
            check.expect(x.is_pinned() and y.is_pinned(), "a batch is not in pinned memory")
            x, y = x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)
            loss = F.cross_entropy(model(x), y)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            losses.append(loss.detach())
    return torch.stack(losses).cpu()


def child(tensor, queue, taken):
    queue.put(tensor * 2)
    taken.wait()  # it lends the memory until then


def main():
    check.repeatable()
    digits = Digits()
    wanted = epochs(digits, 0)
    check.expect(wanted[-4:].mean() < wanted[:4].mean(), "it does not learn")
    check.same("what forked workers bring", epochs(digits, 2, multiprocessing_context="fork"), wanted)
    check.same("what a spawned worker brings", epochs(digits, 1, multiprocessing_context="spawn"), wanted)

    rows = data.DataLoader(Rows(), 4, num_workers=2, multiprocessing_context="fork")
    check.expect(sorted(torch.cat(list(rows)).tolist()) == list(range(40)), "rows are missing")
    early = iter(data.DataLoader(digits, 8, num_workers=2, pin_memory=True, multiprocessing_context="fork"))
    next(early)
    del early

    # A tensor of the host goes to a child and comes back in shared memory.
    spawn = torch.multiprocessing.get_context("spawn")
    check.expect(sys.executable, "Python does not know its own name")
    queue, taken = spawn.Queue(), spawn.Event()
    worker = spawn.Process(target=child, args=(torch.arange(6.0), queue, taken))
    worker.start()
    got = queue.get().clone()
    taken.set()
    check.same("what a child computes", got, torch.arange(6.0) * 2)
    worker.join()
    check.expect(worker.exitcode == 0, f"the child ended with {worker.exitcode}")
    check.note(wanted)
    check.finish()


# What is spawned reads this file, too.
if __name__ == "__main__":
    main()
