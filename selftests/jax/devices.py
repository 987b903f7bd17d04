# SPDX-License-Identifier: Apache-2.0
"""Two devices in one process: arrays and programs on each, copies between them; training by halves of
each batch, whose gradients are exchanged, against one device."""
import jax
import jax.numpy as jnp
import numpy as np
import optax

import check


def init(random):
    return {"up": check.normal(random, 64, 32), "down": check.normal(random, 32, 10)}


def loss_of(p, x, y):
    said = jnp.tanh(x.reshape(x.shape[0], -1) @ p["up"]) @ p["down"]
    return optax.softmax_cross_entropy_with_integer_labels(said, y).mean()


devices = jax.devices("gpu")
check.expect(len(devices) == 2, f"there are {len(devices)} devices")
x, y = check.pictures(512)
data = check.batches((x, y), 32)
sgd = optax.sgd(0.1)

# Each device on its own computes the same bits.
runs = [check.train(init, loss_of, sgd, data, device) for device in devices]
for first, second in zip(*map(jax.tree.leaves, runs)):
    check.expect((np.asarray(first) == np.asarray(second)).all(), "the devices compute other bits")

# Results go from one to the other, and on.
a = jax.device_put(x[0, :, :, 0], devices[0])
b = jax.device_put(a @ a, devices[1])
check.expect(b.devices() == {devices[1]}, "a copy is on the wrong device")
c = jax.device_put(b + 1, devices[0]) - 1
check.close("what was on both", c, a @ a, 1e-6)

# Both at once: each has half of every batch, and gets the mean of both gradients.
@jax.jit
def grads_of(p, x, y):
    return jax.value_and_grad(loss_of)(p, x, y)


@jax.jit
def step(p, one, other):
    return jax.tree.map(lambda p, a, b: p - 0.05 * (a + b), p, one, other)


p, losses = [jax.device_put(init(np.random.default_rng(0)), device) for device in devices], []
for x, y in data:
    half = [jax.device_put((x[i::2], y[i::2]), device) for i, device in enumerate(devices)]
    (first, a), (second, b) = (grads_of(p[i], *half[i]) for i in range(2))
    p = [step(p[0], a, jax.device_put(b, devices[0])), step(p[1], jax.device_put(a, devices[1]), b)]
    losses.append((float(first) + float(second)) / 2)
for name in p[0]:
    check.expect((np.asarray(p[0][name]) == np.asarray(p[1][name])).all(), f"{name} is not the same on both")
    check.close(f"{name} of both", p[0][name], runs[0][0][name], 1e-4)
check.close("the losses of both", losses, runs[0][1], 1e-5)
check.note(runs[0], p, losses)
check.finish()
