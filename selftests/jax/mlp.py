# SPDX-License-Identifier: Apache-2.0
"""A multilayer perceptron: AdamW with clipped gradients and a schedule, against the CPU's; then trained
until it is right."""
import jax
import numpy as np
import optax

import check


def init(random):
    sizes = (64, 64, 32, 10)
    return [{"w": check.normal(random, *shape), "b": np.zeros(shape[1], np.float32)}
            for shape in zip(sizes, sizes[1:])]


def answer(layers, x):
    x = x.reshape(x.shape[0], -1)
    for layer in layers[:-1]:
        x = jax.nn.gelu(x @ layer["w"] + layer["b"])
    return x @ layers[-1]["w"] + layers[-1]["b"]


def loss_of(layers, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(answer(layers, x), y).mean()


def optimiser(steps):
    return optax.chain(optax.clip_by_global_norm(1.0),
                       optax.adamw(optax.warmup_cosine_decay_schedule(0, 3e-3, 5, steps)))


x, y = check.pictures(1280)
data = check.batches((x[:1024], y[:1024]), 64)
check.compare(init, loss_of, optimiser(8), data[:8], 1e-4)

layers, losses, _ = check.train(init, loss_of, optimiser(128), data * 8, check.GPU)
check.note(losses, layers)
right = float((jax.jit(answer)(layers, x[1024:]).argmax(1) == y[1024:]).mean())
check.expect(right > 0.9, f"it is right in {right:.0%} only")
check.finish()
