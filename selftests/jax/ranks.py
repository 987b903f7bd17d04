# SPDX-License-Identifier: Apache-2.0
"""Collective operations over NCCL: several processes with a device each (singvgpu run -n), or one process with
all devices. JAX's operations against what the devices' arrays give on the CPU, sums to the bit in the order of
docs/collectives.md; trainings with batches, or weights too, divided among the devices, against one CPU.
RANKS_GRAPHS=1: XLA captures collectives into graphs. ranks.py [few]: two types, one training."""
import functools
import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"    # no word of the coordinator's end
if "RANKS_GRAPHS" in os.environ:
    os.environ["XLA_FLAGS"] = ("--xla_gpu_autotune_level=0 --xla_gpu_graph_min_graph_size=1 "
                               "--xla_gpu_enable_command_buffer=+COLLECTIVES")

import jax

RANK, RANKS = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
if RANKS > 1:
    jax.distributed.initialize("127.0.0.1:" + os.environ["MASTER_PORT"], RANKS, RANK, local_device_ids=[RANK])

import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import check

DEVICES = jax.devices("gpu")
N = len(DEVICES)
MESH = Mesh(np.array(DEVICES), "x")
TOLERANCE = 1e-4
FEW = "few" in sys.argv
TYPES = (np.float32, jnp.bfloat16) + (() if FEW else (np.float16, np.int32, np.uint8))


def spread(array, spec=P("x")):
    """An array that all processes have, divided among all devices."""
    sharding = NamedSharding(MESH, spec)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def spread_tree(tree, spec=P()):
    return jax.tree.map(lambda a: spread(np.asarray(a), spec), tree)


def whole(array):
    """A divided array, on this process's CPU."""
    if not array.is_fully_addressable:
        array = multihost_utils.process_allgather(array, tiled=True)
    return np.asarray(array)


def tree_sum(parts):
    if len(parts) == 1:
        return parts[0]
    half = 1 << (len(parts) - 1).bit_length() - 1
    return tree_sum(parts[:half]) + tree_sum(parts[half:])


def same(what, got, want):
    got, want = whole(got), np.asarray(want)
    check.expect(got.dtype == want.dtype and got.shape == want.shape, f"{what} is {got.dtype}{got.shape}")
    check.expect(got.tobytes() == want.tobytes(), f"{what} has other bits")
    check.note(got)


def on_each(f, out=P("x")):
    return jax.jit(jax.shard_map(f, mesh=MESH, in_specs=P("x"), out_specs=out, check_vma=False))


def operations():
    """Each device has a row of N x 6 numbers for each device."""
    random = np.random.default_rng(1)
    for dtype in TYPES:
        a = random.normal(0, 1, (N, N, 6)) if np.dtype(dtype).kind in "fV" else random.integers(0, 9, (N, N, 6))
        a = a.astype(dtype)
        # Sums of 16 bits are made in 32, and rounded once.
        wide = a.astype(np.float32) if np.dtype(dtype).itemsize == 2 else a
        total = tree_sum(list(wide)).astype(dtype)
        name, g = np.dtype(dtype).name, spread(a)
        same(f"psum of {name}", on_each(lambda v: lax.psum(v, "x"), P())(g), total[None])
        same(f"pmax of {name}", on_each(lambda v: lax.pmax(v, "x"), P())(g), a.max(0, keepdims=True))
        same(f"pmin of {name}", on_each(lambda v: lax.pmin(v, "x"), P())(g), a.min(0, keepdims=True))
        same(f"psum_scatter of {name}", on_each(lambda v: lax.psum_scatter(v[0], "x"))(g), total.reshape(N * 6))
        same(f"all_gather of {name}", on_each(lambda v: lax.all_gather(v[0], "x"), P())(g), a)
        same(f"all_to_all of {name}", on_each(lambda v: lax.all_to_all(v, "x", 1, 0))(g),
             a.transpose(1, 0, 2).reshape(N * N, 1, 6))
        ring = [(i, (i + 1) % N) for i in range(N)]
        same(f"ppermute of {name}", on_each(lambda v: lax.ppermute(v, "x", ring))(g), np.roll(a, 1, 0))
    # Parts of the devices; and what one has, for all.
    if N == 4:
        pairs = [[0, 2], [1, 3]]
        a = random.normal(0, 1, (N, 5)).astype(np.float32)
        want = np.stack([a[i] + a[(i + 2) % 4] for i in range(N)])
        same("psum of pairs", on_each(lambda v: lax.psum(v, "x", axis_index_groups=pairs))(spread(a)), want)
    a = multihost_utils.broadcast_one_to_all(np.arange(7.0, dtype=np.float32) + RANK)
    check.expect((a == np.arange(7)).all(), "broadcast_one_to_all")
    multihost_utils.sync_global_devices("operations")


def init(random):
    return {"up": check.normal(random, 64, 48), "mid": check.normal(random, 48, 48),
            "down": check.normal(random, 48, 10)}


def loss_of(p, x, y):
    said = jnp.tanh(jnp.tanh(x.reshape(x.shape[0], -1) @ p["up"]) @ p["mid"]) @ p["down"]
    return optax.softmax_cross_entropy_with_integer_labels(said, y).mean()


ADAM = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))


def stepped(p, state, loss, grads):
    updates, state = ADAM.update(grads, state, p)
    return optax.apply_updates(p, updates), state, loss, grads


@functools.partial(jax.jit, donate_argnums=(0, 1))
def by_sharding(p, state, x, y):
    """XLA finds out itself what has to be exchanged."""
    return stepped(p, state, *jax.value_and_grad(loss_of)(p, x, y))


def own_step(p, state, x, y):
    """The step of one device, which exchanges gradients itself."""
    loss, grads = jax.value_and_grad(loss_of)(p, x, y)
    return stepped(p, state, *lax.pmean((loss, grads), "x"))


def trained(what, step, placed, put, data, want):
    """Trains, and compares gradients of the first step and losses with the CPU's."""
    p = placed(init(np.random.default_rng(0)))
    state = placed(ADAM.init(init(np.random.default_rng(0))))
    losses = []
    for i, (x, y) in enumerate(data):
        p, state, loss, grads = step(p, state, put(x), put(y))
        losses.append(loss)
        for name in grads if i == 0 else ():
            check.close(f"{what}: the gradient of {name}", whole(grads[name]).reshape(-1, *want[2][name].shape)[0],
                        want[2][name], TOLERANCE)
    losses = np.stack([whole(loss).ravel()[0] for loss in losses])
    check.close(f"{what}: the losses", losses, want[1], 10 * TOLERANCE)
    p = jax.tree.map(whole, p)
    check.note(losses, p)
    return p, losses


def trainings():
    x, y = check.pictures(24 * N)
    data = check.batches((x, y), 4 * N) * 2
    want = check.train(init, loss_of, ADAM, data, check.CPU)
    trained("by sharding", by_sharding, spread_tree, spread, data, want)
    if FEW:
        return

    # Weights too are divided: the first by columns, the second by rows.
    if 48 % N == 0:
        specs = {"up": P(None, "x"), "mid": P("x", None), "down": P()}

        def placed(tree):
            return jax.tree_util.tree_map_with_path(
                lambda path, a: spread(np.asarray(a), specs.get(getattr(path[-1], "key", None), P())), tree)
        trained("divided weights", by_sharding, placed, lambda a: spread(a, P()), data, want)

    mapped = jax.jit(jax.shard_map(own_step, mesh=MESH, in_specs=(P(), P(), P("x"), P("x")), out_specs=P(),
                                   check_vma=False))
    by_map = trained("by shard_map", mapped, spread_tree, spread, data, want)

    # pmap: of each process its own devices' parts.
    own = [i for i, device in enumerate(DEVICES) if device.process_index == RANK]
    steps = jax.pmap(own_step, "x", devices=DEVICES if RANKS == 1 else None)

    def for_each(tree):
        return jax.tree.map(lambda a: np.stack([a] * len(own)), tree)
    p = for_each(init(np.random.default_rng(0)))
    state = for_each(ADAM.init(init(np.random.default_rng(0))))
    losses = []
    for batch in data:
        p, state, loss, _ = steps(p, state, *(a.reshape(N, 4, *a.shape[1:])[own] for a in batch))
        losses.append(np.asarray(loss.addressable_shards[0].data).ravel()[0])
    check.close("by pmap: the losses", np.stack(losses), want[1], 10 * TOLERANCE)
    check.note(np.stack(losses), by_map[1])


check.expect(N > 1 and N == max(RANKS, len(jax.local_devices())), f"there are {N} devices")
operations()
trainings()
if RANKS > 1:
    digests = multihost_utils.process_allgather(np.frombuffer(check.digest.digest(), np.uint8))
    check.expect((digests == digests[0]).all(), "the ranks have noted other bits")
    multihost_utils.sync_global_devices("end")
if RANK == 0:
    check.finish()
