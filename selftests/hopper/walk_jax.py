# SPDX-License-Identifier: Apache-2.0
"""JAX from its start-up to the first kernels of what training scripts use, a line for each step.

No step reads a result: under the profile h100 kernels are recorded, not run. JAX looks for
/dev/nvidia0 before it tries a device; where there is none it is told of another file."""
import os

from jax._src import hardware_utils

if not os.path.exists("/dev/nvidia0"):
    hardware_utils._NVIDIA_GPU_DEVICES = ["/dev/null"]

import jax
import jax.numpy as jnp


def done(name, x):
    x.block_until_ready()
    print(name, flush=True)


assert jax.devices()[0].platform == "gpu"
x = jnp.ones((256, 256))
done("product", x @ x)
loss = jax.jit(lambda w, x: jnp.tanh(x @ w).sum())
w = jnp.ones((256, 128))
for _ in range(3):
    w = w - 0.1 * jax.grad(loss)(w, x)
done("training", w)
done("random", jax.random.normal(jax.random.key(0), (64, 64)))
half = x.astype(jnp.bfloat16)
done("bfloat16", half @ half)
done("convolution", jax.lax.conv(jnp.ones((2, 3, 32, 32)), jnp.ones((8, 3, 3, 3)), (1, 1), "SAME"))
done("scan", jax.lax.scan(lambda c, a: (c + a, c), jnp.zeros(4), jnp.ones((10, 4)))[0])
q = jnp.ones((1, 64, 4, 64), jnp.bfloat16)
done("attention", jax.nn.dot_product_attention(q, q, q, implementation="cudnn"))
done("fft", jnp.fft.fft(x))
done("linear algebra", jnp.linalg.cholesky(jnp.eye(32)))
print("PASS")
