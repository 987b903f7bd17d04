# SPDX-License-Identifier: Apache-2.0
"""A convolutional network: cuDNN's convolutions with strides, groups and dilation, batch normalisation,
pooling by windows, SGD with momentum; a transposed convolution; trained until it is right."""
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

import check

LAYOUT = ("NHWC", "HWIO", "NHWC")


def init(random):
    return {"first": check.normal(random, 3, 3, 1, 16), "depth": check.normal(random, 3, 3, 1, 16),
            "second": check.normal(random, 3, 3, 16, 32), "back": check.normal(random, 2, 2, 32, 8),
            "scale": np.ones(16, np.float32), "shift": np.zeros(16, np.float32),
            "out": check.normal(random, 128, 10)}


def answer(p, x):
    x = lax.conv_general_dilated(x, p["first"], (1, 1), "SAME", dimension_numbers=LAYOUT)
    mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
    x = jax.nn.relu((x - mean) * lax.rsqrt(var + 1e-5) * p["scale"] + p["shift"])
    x = lax.conv_general_dilated(x, p["depth"], (1, 1), "SAME", rhs_dilation=(2, 2),
                                 dimension_numbers=LAYOUT, feature_group_count=16)
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = jax.nn.relu(lax.conv_general_dilated(x, p["second"], (2, 2), "SAME", dimension_numbers=LAYOUT))
    x = lax.conv_transpose(x, p["back"], (2, 2), "SAME")
    return x.reshape(x.shape[0], -1) @ p["out"]


def loss_of(p, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(answer(p, x), y).mean()


x, y = check.pictures(768)
data = check.batches((x[:512], y[:512]), 32)
sgd = optax.sgd(0.05, momentum=0.9, nesterov=True)
check.compare(init, loss_of, sgd, data[:4], 5e-4)
p, losses, _ = check.train(init, loss_of, sgd, data * 4, check.GPU)
right = float((jax.jit(answer)(p, x[512:]).argmax(1) == y[512:]).mean())
check.expect(right > 0.9, f"it is right in {right:.0%} only")
check.note(losses, p)
check.finish()
