# SPDX-License-Identifier: Apache-2.0
"""Trains with dropout on noisy pictures and prints every loss with the samples' order; at the end a checksum
of losses, order, weights, the optimiser's state and all random number generators. For tests that save it midway.
steps.py STEPS [PAUSE]: with a pause of so many seconds after each step."""
import hashlib
import random
import sys
import time

import jax
import numpy as np
import optax

import check


def init(generator):
    return {"first": check.normal(generator, 3, 3, 1, 8), "out": check.normal(generator, 512, 10)}


def loss_of(p, x, y, key):
    x = jax.lax.conv_general_dilated(x, p["first"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    x = jax.nn.relu(x).reshape(x.shape[0], -1)
    x = jax.numpy.where(jax.random.bernoulli(key, 0.8, x.shape), x / 0.8, 0)
    return optax.softmax_cross_entropy_with_integer_labels(x @ p["out"], y).mean()


adamw = optax.adamw(1e-3)


@jax.jit
def step(p, state, key, x, y):
    key, now = jax.random.split(key)
    loss, grads = jax.value_and_grad(loss_of)(p, x, y, now)
    updates, state = adamw.update(grads, state, p)
    return optax.apply_updates(p, updates), state, key, loss


x, y = check.pictures(1024)
random.seed(0)
order = np.random.default_rng(2)
p = jax.device_put(init(np.random.default_rng(3)))
state, key = adamw.init(p), jax.random.key(0)
for i in range(int(sys.argv[1])):
    # Epochs of 64 batches.
    if i % 64 == 0:
        samples = order.permutation(len(x)).reshape(-1, 16)
    chosen = samples[i % 64]
    p, state, key, loss = step(p, state, key, x[chosen], y[chosen])
    check.note(loss, chosen)
    print("step", i + 1, float(loss), hashlib.sha256(chosen.tobytes()).hexdigest()[:8], random.random(), flush=True)
    time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 0)
check.note(p, state, jax.random.key_data(key))
check.digest.update(repr((order.bit_generator.state, random.getstate())).encode())
check.finish()
