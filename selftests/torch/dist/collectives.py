# SPDX-License-Identifier: Apache-2.0
"""torch.distributed's collective operations over NCCL, on all ranks and on subsets of them: each against
what the ranks' tensors, which every rank can compute, give on the CPU, to the bit. Objects, coalesced
operations, several streams, asynchronous operations out of order, types."""
import itertools

import ranks
from ranks import check

import torch
import torch.distributed as dist

FLOATS = torch.float16, torch.bfloat16, torch.float32, torch.float64
WHOLE = torch.int8, torch.uint8, torch.int32, torch.int64
SHAPE = 13, 7


def of(rank, dtype=torch.float32, shape=SHAPE, turn=0):
    """A rank's tensor, on the CPU."""
    random = torch.Generator().manual_seed(1000 * turn + rank)
    if dtype == torch.bool:
        return torch.rand(shape, generator=random) < 0.7
    if dtype in WHOLE:
        return torch.randint(0, 5, shape, generator=random).to(dtype)
    return torch.randn(shape, generator=random, dtype=torch.float64).to(dtype)


def expect(what, got, want):
    check.same(what, got, want)
    check.note(got)


def reduced(parts, op):
    """What they give by docs/collectives.md."""
    dtype = parts[0].dtype
    wide = torch.float32 if dtype in FLOATS[:2] else dtype
    parts = [part.to(wide) for part in parts]
    if op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        total = ranks.tree(parts)
        if op == dist.ReduceOp.AVG:
            total = total / len(parts) if wide.is_floating_point else total.div(len(parts), rounding_mode="trunc")
        return total.to(dtype)
    total, how = parts[0], {dist.ReduceOp.MIN: torch.minimum, dist.ReduceOp.MAX: torch.maximum}
    for part in parts[1:]:
        total = how[op](total, part) if op in how else total * part
    return total.to(dtype)


def reductions(group, members):
    me = dist.get_rank()
    ops = dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT
    for turn, (dtype, op) in enumerate(itertools.product(FLOATS + WHOLE, ops)):
        if op == dist.ReduceOp.PRODUCT and dtype in FLOATS and len(members) > 3:
            continue            # whose order is the tree's, too; reduced() has none
        parts = [of(r, dtype, turn=turn) for r in members]
        want, what = reduced(parts, op), f"of {dtype} by {op} among {members}"
        got = of(me, dtype, turn=turn).cuda()
        dist.all_reduce(got, op, group)
        expect(f"all_reduce {what}", got, want)
        got = of(me, dtype, turn=turn).cuda()
        root = members[turn % len(members)]
        dist.reduce(got, root, op, group)
        if me == root:
            expect(f"reduce {what}", got, want)
        place, size = members.index(me), len(members)
        mine = torch.cat([of(me, dtype, turn=turn + 7 * i) for i in range(size)]).cuda()
        got = torch.empty(SHAPE, dtype=dtype, device=ranks.device())
        want = reduced([of(r, dtype, turn=turn + 7 * place) for r in members], op)
        dist.reduce_scatter_tensor(got, mine, op, group)
        expect(f"reduce_scatter_tensor {what}", got, want)
        dist.reduce_scatter(got.zero_(), list(mine.chunk(size)), op, group)
        expect(f"reduce_scatter {what}", got, want)
    got = of(me).cuda()
    dist.all_reduce(got, dist._make_nccl_premul_sum(0.5), group)
    expect("all_reduce of factors", got, ranks.tree([of(r) * 0.5 for r in members]))
    if len(members) > 1:
        got = of(me, torch.bool).cuda()
        dist.all_reduce(got, group=group)
        expect("all_reduce of bool", got, torch.stack([of(r, torch.bool) for r in members]).any(0))


def copies(group, members):
    me, size = dist.get_rank(), len(members)
    place = members.index(me)
    for turn, dtype in enumerate(FLOATS + WHOLE + (torch.bool, torch.complex64, torch.float8_e4m3fn)):
        made = torch.float32 if dtype in (torch.complex64, torch.float8_e4m3fn) else dtype
        part = lambda rank, t=turn, s=SHAPE: of(rank, made, s, t).to(dtype)  # noqa: B023
        all_of = torch.cat([part(r).view(torch.uint8) if dtype.itemsize == 1 else part(r) for r in members])
        all_of = all_of.view(dtype)
        root = members[turn % size]
        got = part(me).cuda() if me == root else torch.zeros(SHAPE, dtype=dtype, device=ranks.device())
        dist.broadcast(got, root, group)
        expect(f"broadcast of {dtype}", got.view(torch.uint8), part(root).view(torch.uint8))
        got = torch.zeros((SHAPE[0] * size, SHAPE[1]), dtype=dtype, device=ranks.device())
        dist.all_gather_into_tensor(got, part(me).cuda(), group)
        expect(f"all_gather_into_tensor of {dtype}", got.view(torch.uint8), all_of.view(torch.uint8))
        got = [torch.zeros(SHAPE, dtype=dtype, device=ranks.device()) for _ in members]
        dist.all_gather(got, part(me).cuda(), group)
        for r, g in zip(members, got):
            expect(f"all_gather of {dtype}", g.view(torch.uint8), part(r).view(torch.uint8))
        if dtype == torch.complex64:
            continue            # PyTorch itself has no gather and scatter of these
        got = [torch.zeros(SHAPE, dtype=dtype, device=ranks.device()) for _ in members] if me == root else None
        dist.gather(part(me).cuda(), got, root, group)
        for r, g in zip(members, got or []):
            expect(f"gather of {dtype}", g.view(torch.uint8), part(r).view(torch.uint8))
        got = torch.zeros(SHAPE, dtype=dtype, device=ranks.device())
        dist.scatter(got, [part(me, i).cuda() for i in range(size)] if me == root else None, root, group)
        expect(f"scatter of {dtype}", got.view(torch.uint8), part(root, place).view(torch.uint8))
    # Of another size for each rank.
    got = [torch.zeros(3 + r, 2, device=ranks.device()) for r in members]
    dist.all_gather(got, of(me, shape=(3 + me, 2)).cuda(), group)
    for r, g in zip(members, got):
        expect("all_gather of several sizes", g, of(r, shape=(3 + r, 2)))


def all_to_all(group, members):
    me, size = dist.get_rank(), len(members)
    place = members.index(me)
    mine = torch.cat([of(me, turn=i) for i in range(size)]).cuda()
    got = torch.zeros_like(mine)
    dist.all_to_all_single(got, mine, group=group)
    expect("all_to_all_single", got, torch.cat([of(r, turn=place) for r in members]))
    # From the i-th to the k-th go i + 2 k rows: none from the first to itself.
    rows = lambda i, k: of(members[i], shape=(i + 2 * k, 3), turn=k)  # noqa: E731
    mine = torch.cat([rows(place, k) for k in range(size)]).cuda()
    want = torch.cat([rows(i, place) for i in range(size)])
    got = torch.zeros(want.shape, device=ranks.device())
    dist.all_to_all_single(got, mine, [i + 2 * place for i in range(size)], [place + 2 * k for k in range(size)], group)
    expect("all_to_all_single of several sizes", got, want)
    got = [torch.zeros(i + 2 * place + 1, 3, device=ranks.device()) for i in range(size)]
    dist.all_to_all(got, [of(me, shape=(place + 2 * k + 1, 3), turn=k).cuda() for k in range(size)], group)
    for i, g in enumerate(got):
        expect("all_to_all", g, of(members[i], shape=(i + 2 * place + 1, 3), turn=place))


def pairs(group, members):
    me, size = dist.get_rank(), len(members)
    place = members.index(me)
    if size < 2:
        return
    after, before = members[(place + 1) % size], members[place - 1]
    for shape in (4,), (700_000,):      # small ones are sent ahead
        got = torch.zeros(shape, device=ranks.device())
        if place % 2:
            dist.recv(got, before, group)
            dist.send(of(me, shape=shape).cuda(), after, group)
        else:
            dist.send(of(me, shape=shape).cuda(), after, group)
            dist.recv(got, before, group)
        expect("what was sent in a ring", got, of(before, shape=shape))
        got = torch.zeros(shape, device=ranks.device())
        back = torch.zeros(shape, device=ranks.device())
        works = dist.batch_isend_irecv([
            dist.P2POp(dist.isend, of(me, shape=shape, turn=1).cuda(), after, group),
            dist.P2POp(dist.irecv, back, after, group),
            dist.P2POp(dist.isend, of(me, shape=shape, turn=2).cuda(), before, group),
            dist.P2POp(dist.irecv, got, before, group),
        ])
        for work in works:
            work.wait()
        if size > 2:            # of two, both neighbours are one: what is sent first comes first
            expect("sent to the next", got, of(before, shape=shape, turn=1))
            expect("sent to the one before", back, of(after, shape=shape, turn=2))
        else:
            expect("sent first", back, of(before, shape=shape, turn=1))
            expect("sent second", got, of(before, shape=shape, turn=2))
    if place == 0:
        for turn in range(5):
            dist.isend(of(me, turn=turn).cuda(), members[1], group).wait()
    if place == 1:
        got = [torch.zeros(SHAPE, device=ranks.device()) for _ in range(5)]
        for work in [dist.irecv(g, members[0], group) for g in got]:
            work.wait()
        for turn, g in enumerate(got):
            expect("one of several that were sent", g, of(members[0], turn=turn))


def objects(group, members):
    me, size = dist.get_rank(), len(members)
    of_rank = lambda r: {"rank": r, "text": "x" * (r * 100), "tensor": of(r).cuda().sum().item()}  # noqa: E731
    got = [of_rank(members[0]), "second"] if me == members[0] else [None, None]
    dist.broadcast_object_list(got, members[0], group)
    check.expect(got == [of_rank(members[0]), "second"], f"broadcast_object_list gave {got}")
    got = [None] * size
    dist.all_gather_object(got, of_rank(me), group)
    check.expect(got == [of_rank(r) for r in members], f"all_gather_object gave {got}")
    got = [None] * size if me == members[-1] else None
    dist.gather_object(of_rank(me), got, members[-1], group)
    check.expect(got in (None, [of_rank(r) for r in members]), f"gather_object gave {got}")
    got = [None]
    dist.scatter_object_list(got, [of_rank(r) for r in members] if me == members[0] else None, members[0], group)
    check.expect(got == [of_rank(me)], f"scatter_object_list gave {got}")


def together(group, members):
    """Coalesced operations, asynchronous ones that are waited for out of order, another stream."""
    me, turns = dist.get_rank(), range(12)
    sums = [ranks.tree([of(r, turn=t) for r in members]) for t in turns]
    got = [of(me, turn=t).cuda() for t in turns]
    with dist._coalescing_manager(group, ranks.device(), async_ops=True) as manager:
        for g in got:
            dist.all_reduce(g, group=group)
    manager.wait()
    for g, want in zip(got, sums):
        expect("a coalesced all_reduce", g, want)
    got = [of(me, turn=t).cuda() for t in turns]
    works = [dist.all_reduce(g, group=group, async_op=True) for g in got]
    for t in reversed(turns):
        works[t].wait()
        got[t].mul_(2)
        expect("an asynchronous all_reduce", got[t], sums[t] * 2)
    check.expect(all(work.is_completed() for work in works), "an operation that was waited for is not complete")
    side = torch.cuda.Stream()
    x = torch.zeros(SHAPE, device=ranks.device())
    with torch.cuda.stream(side):
        for t in turns:
            x.copy_(of(me, turn=t))
            dist.all_reduce(x, group=group)
            x.add_(1)
    torch.cuda.current_stream().wait_stream(side)
    expect("an all_reduce on another stream", x, sums[-1] + 1)
    dist.barrier(group)


def everything(group, members):
    reductions(group, members)
    copies(group, members)
    all_to_all(group, members)
    pairs(group, members)
    objects(group, members)
    together(group, members)


def main():
    me, n = ranks.start()
    everything(dist.group.WORLD, list(range(n)))
    # Each of these is made by all ranks, and used by its own.
    subsets = [[0], [n - 1], list(range(0, n, 2))] if n > 2 else [[0], [1]]
    subsets += [[3, 1, 2], [0, 1], [2, 3]] if n == 4 else []
    groups = [(dist.new_group(members, timeout=ranks.PATIENCE), sorted(members)) for members in subsets]
    for group, members in groups:
        if me in members:
            everything(group, members)
    mine, _ = dist.new_subgroups(1)
    together(mine, [me])
    x = of(me, shape=(1 << 20,)).cuda()
    dist.all_reduce(x)
    expect("a large all_reduce", x, ranks.tree([of(r, shape=(1 << 20,)) for r in range(n)]))
    empty = torch.zeros(0, device=ranks.device())
    dist.all_reduce(empty)
    for group, members in groups[:2]:
        if me in members:
            dist.destroy_process_group(group)
    ranks.finish()


if __name__ == "__main__":
    main()
