# SPDX-License-Identifier: Apache-2.0
"""Trains on all devices, a share of each batch on each, and prints every loss; for tests that resize it midway. In one
process, or in a process for each device (singvgpu run -n). divided.py STEPS"""
import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"    # no word of the coordinator's end

import jax

RANKS = int(os.environ.get("WORLD_SIZE", 1))
if RANKS > 1:
    rank = int(os.environ["RANK"])
    jax.distributed.initialize("127.0.0.1:" + os.environ["MASTER_PORT"], RANKS, rank, local_device_ids=[rank])

import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import check

MESH = Mesh(np.array(jax.devices("gpu")), "x")


def put(array, spec):
    """An array that all processes have, on all devices."""
    array = np.asarray(array)
    return jax.make_array_from_callback(array.shape, NamedSharding(MESH, spec), lambda index: array[index])


def init(random):
    return {"up": check.normal(random, 64, 32), "down": check.normal(random, 32, 10)}


def loss_of(p, x, y):
    said = jax.numpy.tanh(x.reshape(x.shape[0], -1) @ p["up"]) @ p["down"]
    return optax.softmax_cross_entropy_with_integer_labels(said, y).mean()


adamw = optax.adamw(1e-2)


@jax.jit
def step(p, state, x, y):
    loss, grads = jax.value_and_grad(loss_of)(p, x, y)
    updates, state = adamw.update(grads, state, p)
    return optax.apply_updates(p, updates), state, loss


pictures, labels = check.pictures(512)
order = np.random.default_rng(2)
p = init(np.random.default_rng(3))
p, state = jax.tree.map(lambda a: put(a, P()), (p, adamw.init(p)))
for i in range(int(sys.argv[1])):
    chosen = order.choice(len(labels), 32, replace=False)
    p, state, loss = step(p, state, put(pictures[chosen], P("x")), put(labels[chosen], P("x")))
    check.note(loss)
    print("step", i + 1, "loss", float(loss).hex(), flush=True)
check.note(p, state)
check.finish()
