# SPDX-License-Identifier: Apache-2.0
"""What jit compiles besides layers: a GRU by scan with dropout, its gradients; cond, switch, while_loop
and fori_loop; associative scans, sorts, cumulative sums, scatters; random numbers, the CPU's bits;
linear algebra and FFT; a custom gradient; op by op; gradients of each example by vmap; donated
arguments; results that a callback on the host gives."""
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

import check

WIDTH = 24


def init(random):
    return {"in": check.normal(random, 8, 3 * WIDTH), "on": check.normal(random, WIDTH, 3 * WIDTH),
            "out": check.normal(random, WIDTH, 1)}


def gru(p, h, x):
    a, b = x @ p["in"], h @ p["on"]
    reset = jax.nn.sigmoid(a[:, :WIDTH] + b[:, :WIDTH])
    keep = jax.nn.sigmoid(a[:, WIDTH:2 * WIDTH] + b[:, WIDTH:2 * WIDTH])
    fresh = jnp.tanh(a[:, 2 * WIDTH:] + reset * b[:, 2 * WIDTH:])
    return keep * h + (1 - keep) * fresh


def loss_of(p, x, y, key):
    """The sum of a sequence's first column, which dropout hides in part."""
    def step(carry, x):
        h, key = carry
        key, now = jax.random.split(key)
        h = gru(p, h, x)
        return (h, key), jnp.where(jax.random.bernoulli(now, 0.9, h.shape), h / 0.9, 0) @ p["out"]

    start = jnp.zeros((x.shape[0], WIDTH))
    _, said = lax.scan(step, (start, jax.random.wrap_key_data(key)), jnp.swapaxes(x, 0, 1))
    return optax.huber_loss(said[-1, :, 0], y).mean()


@jax.custom_vjp
def clipped(x):
    return x * x


clipped.defvjp(lambda x: (x * x, x), lambda x, g: (jnp.clip(g * 2 * x, -1, 1),))


def loops(x):
    n, low = lax.while_loop(lambda c: c[1].max() > 1e-3, lambda c: (c[0] + 1, c[1] * 0.7), (0, jnp.abs(x)))
    cubes = lax.fori_loop(0, 3, lambda i, c: c * x, jnp.ones_like(x))
    some = lax.cond(n > 3, lambda: cubes + n, lambda: cubes - n)
    other = lax.switch(n % 3, [lambda: low, lambda: low + 1, lambda: low * 2])
    products = lax.associative_scan(lambda a, b: a * b, 1 + 0.01 * x, axis=0)
    return n, some, other, products, jax.grad(lambda x: clipped(x).sum())(x)


def arrays(x):
    at = jnp.argsort(x[:, 0])
    return (jnp.sort(x, 0), at, jnp.cumsum(x, 1), lax.top_k(x, 5), jnp.zeros(16).at[at % 16].add(x[:, 1]),
            jnp.take_along_axis(x, jnp.argsort(x, 1), 1), jnp.unique(at % 7, size=7),
            jax.ops.segment_max(x[:, 2], at % 5, 5))


def algebra(x):
    a = x[:32, :32] @ x[:32, :32].T + 32 * jnp.eye(32)
    return (jnp.linalg.cholesky(a), jnp.linalg.solve(a, x[:32]), jnp.linalg.eigvalsh(a),
            jnp.linalg.svd(x[:32], compute_uv=False), jnp.abs(jnp.fft.rfft(x)), jnp.abs(jnp.fft.fft2(x)),
            jnp.linalg.qr(x[:32, :32])[1] ** 2)


def numbers(key):
    key = jax.random.wrap_key_data(key)
    return (jax.random.bits(key, (64,)), jax.random.uniform(key, (64,)), jax.random.permutation(key, 64),
            jax.random.randint(key, (64,), -5, 100), jax.random.categorical(key, jnp.zeros(8), shape=(64,)))


def both(what, f, tolerance, *args):
    want = jax.jit(f)(*jax.device_put(args, check.CPU))
    got = jax.jit(f)(*jax.device_put(args, check.GPU))
    for i, (g, w) in enumerate(zip(jax.tree.leaves(got), jax.tree.leaves(want))):
        check.close(f"{what}: result {i}", g, w, tolerance)
    check.note(got)


random = np.random.default_rng(0)
x = random.standard_normal((512, 10, 8)).astype(np.float32)
keys = random.integers(0, 2 ** 32, (16, 2), dtype=np.uint32)
data = [(x[i:i + 32], x[i:i + 32, :, 0].sum(1), key) for i, key in zip(range(0, 512, 32), keys)]
p, losses, _ = check.compare(init, loss_of, optax.rmsprop(1e-2), data, 1e-3)
check.expect(losses[-4:].mean() < losses[:4].mean(), "it does not learn")

with jax.disable_jit():
    op_by_op = gru(p, jnp.ones((32, WIDTH)), data[0][0][:, 0])
check.close("a step op by op", op_by_op, jax.jit(gru)(p, jnp.ones((32, WIDTH)), data[0][0][:, 0]), 1e-5)
said = lambda p, x: gru(p, jnp.ones((x.shape[0], WIDTH)), x).mean()  # noqa: E731
x = data[0][0][:, 0]
each = jax.jit(jax.vmap(jax.grad(said), in_axes=(None, 0)))(p, x[:, None])
for one, whole in zip(jax.tree.leaves(each), jax.tree.leaves(jax.jit(jax.grad(said))(p, x))):
    check.close("the mean of each example's gradient", one.mean(0), whole, 1e-4)
half = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 0.5, tree), donate_argnums=0)
given = jax.tree.map(jnp.array, p)
check.note(each, half(given))
check.expect(all(leaf.is_deleted() for leaf in jax.tree.leaves(given)), "a donated array is still there")

x = random.standard_normal((64, 48)).astype(np.float32)
both("loops", loops, 1e-5, x)
both("arrays", arrays, 1e-5, x)
both("algebra", algebra, 1e-4, x)
both("random numbers", numbers, 0, keys[0])

asked = []
told = jax.jit(lambda x: jax.pure_callback(lambda x: asked.append(1) or np.asarray(x) * 2,
                                           jax.ShapeDtypeStruct(x.shape, x.dtype), x) + 1)(x)
check.close("what the host said", told, x * 2 + 1, 1e-6)
check.expect(asked, "the host was not asked")
check.finish()
