# SPDX-License-Identifier: Apache-2.0
"""Trains with dropout on noisy pictures and prints every loss: for test-jax, which saves it midway.
steps.py STEPS [PAUSE]: with a pause of so many seconds after each step."""
import sys
import time

import jax
import numpy as np
import optax

import check


def init(random):
    return {"first": check.normal(random, 3, 3, 1, 8), "out": check.normal(random, 512, 10)}


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
random = np.random.default_rng(2)
p = jax.device_put(init(random))
state, key = adamw.init(p), jax.random.key(0)
for i in range(int(sys.argv[1])):
    chosen = random.integers(0, len(x), 16)
    p, state, key, loss = step(p, state, key, x[chosen], y[chosen])
    check.note(loss)
    print("step", i + 1, float(loss), flush=True)
    time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 0)
check.note(p)
check.finish()
