# SPDX-License-Identifier: Apache-2.0
"""What the scripts of this folder share: a model trained on the CPU and on the GPU, compared; the
checksum of all that has to be the same in two runs."""
import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Which kernels XLA's search finds fastest differs from run to run: it is off, or the second run takes
# over what the first has found.
if "TRAINING_SEARCH" in os.environ:
    found = os.path.join(os.environ["TRAINING_SCRATCH"], "found")
    os.makedirs(found, exist_ok=True)
    os.environ.setdefault("XLA_FLAGS", "--xla_gpu_per_fusion_autotune_cache_dir=" + found)
else:
    os.environ.setdefault("XLA_FLAGS", "--xla_gpu_autotune_level=0")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import trained  # noqa: E402
from trained import batches, close, digest, expect, finish, pictures  # noqa: E402,F401


def repeatable():
    """Asks TensorFlow for the same bits in each run, and for f32 as the CPU computes it."""
    # Where there is no CUDA, TensorFlow takes the CPU without a word.
    expect(tf.config.list_physical_devices("GPU"), "TensorFlow has no GPU")
    keras.utils.set_random_seed(0)
    tf.config.experimental.enable_op_determinism()
    tf.config.experimental.enable_tensor_float_32_execution(False)


def note(*arrays):
    """Adds arrays, or lists of them, to the checksum."""
    trained.note(*tf.nest.flatten(arrays))


def train(build, optimiser, loss_of, data, device, jit=False):
    """A model trained on the batches: itself, its losses, and the first batch's gradients."""
    keras.utils.set_random_seed(0)
    with tf.device(device):
        model, steps = build(), optimiser()

        @tf.function(jit_compile=jit)
        def step(*batch):
            with tf.GradientTape() as tape:
                loss = loss_of(model, *batch)
                scaled = steps.scale_loss(loss)
            grads = tape.gradient(scaled, model.trainable_variables)
            steps.apply(grads, model.trainable_variables)
            return loss, [tf.convert_to_tensor(grad) for grad in grads]

        steps.build(model.trainable_variables)
        losses, first = [], None
        for batch in data:
            loss, grads = step(*map(tf.constant, batch))
            losses.append(loss)
            first = first or grads
    expect(device in losses[-1].device, f"the training was not on {device}")
    return model, np.stack([float(loss) for loss in losses]), first


def compare(build, optimiser, loss_of, data, tolerance, drift=10, jit=False):
    """Trains on both; losses may drift apart by more than one step's tolerance. What the GPU made."""
    cpu = train(build, optimiser, loss_of, data, "CPU:0", jit)
    gpu = train(build, optimiser, loss_of, data, "GPU:0", jit)
    for weight, got, wanted in zip(gpu[0].trainable_variables, gpu[2], cpu[2]):
        close(f"the gradient of {weight.path}", got, wanted, tolerance)
    close("the first loss", gpu[1][:1], cpu[1][:1], tolerance)
    close("the losses", gpu[1], cpu[1], tolerance * drift)
    note(gpu[1], gpu[2], [weight.numpy() for weight in gpu[0].weights])
    return gpu
