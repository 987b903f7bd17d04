# SPDX-License-Identifier: Apache-2.0
"""DeviceMesh and DTensor: a transformer block that is split over ranks (tensor and sequence parallelism, a loss
of split logits), that over 2 x 2 ranks with fully_shard; tensors that are redistributed and computed with.
Losses and weights against one process's on the CPU."""
import ranks
from ranks import check

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel,
                                               loss_parallel, parallelize_module)
from torch.nn import functional as F

STEPS, BATCH, LENGTH, WIDTH, HEADS, WORDS, TOLERANCE = 3, 2, 8, 16, 4, 20, 1e-4


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.join = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (part(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for part in (self.q, self.k, self.v))
        scores = (q @ k.transpose(-1, -2) / 2).softmax(-1)
        return self.join((scores @ v).transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.back = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return self.back(F.gelu(self.wide(x)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.between, self.mlp = nn.LayerNorm(WIDTH), Mlp()

    def forward(self, x):
        x = x + self.attention(self.before(x))
        return x + self.mlp(self.between(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.block = nn.Embedding(WORDS, WIDTH), Block()
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, x):
        return self.out(self.norm(self.block(self.words(x))))


def made():
    torch.manual_seed(3)
    return Net()


def batches(n):
    random = torch.Generator().manual_seed(7)
    return [torch.randint(0, WORDS, (n * BATCH, LENGTH + 1), generator=random) for _ in range(STEPS)]


def trained(model, texts, loss_of):
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    losses = []
    for text in texts:
        optimiser.zero_grad()
        losses.append(loss_of(model, text))
        optimiser.step()
    return torch.stack(losses)


def plain(model, text):
    loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
    loss.backward()
    return loss.detach()


def split_loss(model, text):
    """Whose logits are split by words."""
    with loss_parallel():
        loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
    return loss.detach().full_tensor() if isinstance(loss, DTensor) else loss.detach()


def compare(what, model, losses, texts):
    reference = made()
    check.close(f"{what}: the losses", losses, trained(reference, texts, plain), TOLERANCE)
    for (name, p), wanted in zip(model.named_parameters(), reference.parameters()):
        p = p.full_tensor() if isinstance(p, DTensor) else p
        check.close(f"{what}: {name}", p, wanted, 20 * TOLERANCE)
        check.note(p)
    check.note(losses)


def parallel(model, mesh, sequence):
    """Its layers split over a mesh; with `sequence`, activations between them too."""
    outer = Shard(1) if sequence else Replicate()
    plan = {
        "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=outer),
        "block.attention": PrepareModuleInput(input_layouts=(outer,), desired_input_layouts=(Replicate(),)),
        **{f"block.attention.{x}": ColwiseParallel() for x in "qkv"},
        "block.attention.join": RowwiseParallel(output_layouts=outer),
        "block.mlp": PrepareModuleInput(input_layouts=(outer,), desired_input_layouts=(Replicate(),)),
        "block.mlp.wide": ColwiseParallel(),
        "block.mlp.back": RowwiseParallel(output_layouts=outer),
        "out": ColwiseParallel(input_layouts=outer, output_layouts=Shard(-1), use_local_output=False),
    }
    if sequence:
        plan |= {name: SequenceParallel() for name in ("block.before", "block.between", "norm")}
    return parallelize_module(model, mesh, plan)


def tensors(mesh, n):
    """A tensor in all layouts, and computed with."""
    torch.manual_seed(4)
    whole, other = torch.randn(13, 10), torch.randn(10, 6)
    layouts = Replicate(), Shard(0), Shard(1)
    for before in layouts:
        there = distribute_tensor(whole.cuda(), mesh, [before])
        for after in layouts:
            moved = there.redistribute(mesh, [after])
            check.same(f"a tensor from {before} to {after}", moved.full_tensor(), whole)
        for second in layouts:
            product = there @ distribute_tensor(other.cuda(), mesh, [second])
            check.close(f"a product of {before} and {second}", product.full_tensor(), whole @ other, 1e-5)
            check.note(product.full_tensor())
        check.close(f"the sum of {before}", there.sum().full_tensor(), whole.sum(), 1e-4)
        check.close(f"softmax of {before}", there.softmax(-1).full_tensor(), whole.softmax(-1), 1e-5)
    partial = DTensor.from_local(whole.cuda(), mesh, [Partial()])
    check.close("a partial tensor", partial.redistribute(mesh, [Shard(0)]).full_tensor(), whole * n, 1e-5)


def main():
    rank, n = ranks.start()
    mesh = init_device_mesh("cuda", (n,))
    tensors(mesh, n)
    for sequence in False, True:
        what = "split layers and sequences" if sequence else "split layers"
        model = parallel(made().to(ranks.device()), mesh, sequence)
        texts = batches(1)
        losses = trained(model, [text.cuda() for text in texts], split_loss)
        compare(what, model, losses, texts)
    if n % 2 == 0 and n > 2:
        mesh = init_device_mesh("cuda", (2, n // 2), mesh_dim_names=("data", "layers"))
        copy, copies = mesh["data"].get_local_rank(), 2
        model = parallel(made().to(ranks.device()), mesh["layers"], True)
        fully_shard(model.block, mesh=mesh["data"])
        fully_shard(model, mesh=mesh["data"])
        texts = batches(copies)
        mine = [text.chunk(copies)[copy].cuda() for text in texts]
        losses = trained(model, mine, split_loss)
        dist.all_reduce(losses, dist.ReduceOp.AVG, mesh["data"].get_group())
        compare("split layers, sharded", model, losses, texts)
    ranks.finish()


if __name__ == "__main__":
    main()
