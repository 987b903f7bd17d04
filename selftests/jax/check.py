# SPDX-License-Identifier: Apache-2.0
"""What the scripts of this folder share: a model trained on the CPU and on the GPU, compared; the
checksum of all that has to be the same in two runs."""
import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))

# Which kernels XLA's search finds fastest differs from run to run: it is off, or the second run takes
# over what the first has found.
if "TRAINING_SEARCH" in os.environ:
    found = os.path.join(os.environ["TRAINING_SCRATCH"], "found")
    os.makedirs(found, exist_ok=True)
    os.environ.setdefault("XLA_FLAGS", "--xla_gpu_per_fusion_autotune_cache_dir=" + found)
else:
    os.environ.setdefault("XLA_FLAGS", "--xla_gpu_autotune_level=0")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402

import trained  # noqa: E402
from trained import batches, close, digest, expect, finish, pictures  # noqa: E402,F401

# f32 as the CPU computes it.
jax.config.update("jax_default_matmul_precision", "highest")
CPU = jax.local_devices(backend="cpu")[0]

# Where there is no CUDA, JAX takes the CPU without a word.
expect(jax.default_backend() == "gpu", f"JAX works on the {jax.default_backend()}")
GPU = jax.local_devices(backend="gpu")[0]


def note(*trees):
    """Adds arrays, or trees of them, to the checksum."""
    trained.note(*jax.tree.leaves(trees))


def train(init, loss_of, optimiser, data, device):
    """A model trained on the batches: its parameters, losses, and the first batch's gradients."""
    with jax.default_device(device):
        @jax.jit
        def step(parameters, state, batch):
            loss, grads = jax.value_and_grad(loss_of)(parameters, *batch)
            updates, state = optimiser.update(grads, state, parameters)
            return optax.apply_updates(parameters, updates), state, loss, grads

        parameters = jax.device_put(init(np.random.default_rng(0)), device)
        state = optimiser.init(parameters)
        losses, first = [], None
        for batch in data:
            parameters, state, loss, grads = step(parameters, state, jax.device_put(batch, device))
            losses.append(loss)
            first = first or grads
        expect(losses[-1].devices() == {device}, f"the training was not on {device}")
        return parameters, jnp.stack(losses), first


def compare(init, loss_of, optimiser, data, tolerance, drift=10):
    """Trains on both; losses may drift apart by more than one step's tolerance. What the GPU made."""
    data = list(data)
    cpu = train(init, loss_of, optimiser, data, CPU)
    gpu = train(init, loss_of, optimiser, data, GPU)
    for (path, wanted), got in zip(jax.tree_util.tree_leaves_with_path(cpu[2]), jax.tree.leaves(gpu[2])):
        close(f"the gradient of {jax.tree_util.keystr(path)}", got, wanted, tolerance)
    close("the first loss", gpu[1][:1], cpu[1][:1], tolerance)
    close("the losses", gpu[1], cpu[1], tolerance * drift)
    note(gpu)
    return gpu


def normal(random, *shape):
    """Weights whose products keep their size."""
    return (random.standard_normal(shape) / np.sqrt(np.prod(shape[:-1]))).astype(np.float32)
