# SPDX-License-Identifier: Apache-2.0
"""Collective operations over NCCL: MultiWorkerMirroredStrategy with several processes of a device each
(singvgpu run -n), or MirroredStrategy with NcclAllReduce in one process with all devices. Operations to the bit,
sums in the order of docs/collectives.md; a training loop against one process on the CPU that has all batches; of
one process Keras's fit."""
import json
import os
import socket

RANK, RANKS = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def free_port():
    """A socket that holds a free port."""
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    return s


def ports():
    """A free port of each rank, by way of the first one."""
    master = ("127.0.0.1", int(os.environ["MASTER_PORT"]))
    own = free_port()
    port = own.getsockname()[1]
    if RANK == 0:
        with socket.create_server(master) as server:
            others = [server.accept()[0].makefile("rw") for _ in range(1, RANKS)]
            known = dict([(0, port)] + [json.loads(f.readline()) for f in others])
            for f in others:
                print(json.dumps([known[i] for i in range(RANKS)]), file=f, flush=True)
        known = [known[i] for i in range(RANKS)]
    else:
        while True:
            try:
                f = socket.create_connection(master).makefile("rw")
                break
            except ConnectionRefusedError:
                pass
        print(json.dumps([RANK, port]), file=f, flush=True)
        known = json.loads(f.readline())
    own.close()
    return known


if RANKS > 1:
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": [f"127.0.0.1:{port}" for port in ports()]},
                                          "task": {"type": "worker", "index": RANK}})

import keras
import numpy as np
import tensorflow as tf

import check

said = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def strategy():
    gpus = tf.config.list_physical_devices("GPU")
    if RANKS == 1:
        return tf.distribute.MirroredStrategy([f"GPU:{i}" for i in range(len(gpus))],
                                              tf.distribute.NcclAllReduce(num_packs=1))
    tf.config.set_visible_devices(gpus[RANK], "GPU")
    nccl = tf.distribute.experimental.CommunicationImplementation.NCCL
    return tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(implementation=nccl))


def tree_sum(parts):
    if len(parts) == 1:
        return parts[0]
    half = 1 << (len(parts) - 1).bit_length() - 1
    return tree_sum(parts[:half]) + tree_sum(parts[half:])


def same(what, got, want):
    """On this process's devices."""
    for array in map(np.asarray, S.experimental_local_results(got)):
        check.expect(array.dtype == want.dtype and array.shape == want.shape, f"{what} is {array.dtype}{array.shape}")
        check.expect(array.tobytes() == want.tobytes(), f"{what} has other bits")
        check.note(array)


def operations():
    random = np.random.default_rng(1)
    for dtype in tf.float32, tf.float64, tf.float16, tf.int64:    # on a GPU TensorFlow has no others
        a = (random.normal(0, 1, (N, 33)) if dtype.is_floating else random.integers(0, 9, (N, 33)))
        a = a.astype(dtype.as_numpy_dtype)

        @tf.function
        def summed(how, a=a):
            def on_each():
                context = tf.distribute.get_replica_context()
                return context.all_reduce(how, tf.gather(a, context.replica_id_in_sync_group))
            return S.run(on_each)

        @tf.function
        def gathered(a=a):
            def on_each():
                context = tf.distribute.get_replica_context()
                return context.all_gather(tf.gather(a, context.replica_id_in_sync_group)[None], 0)
            return S.run(on_each)

        total = tree_sum(list(a.astype(np.float32) if dtype == tf.float16 else a)).astype(a.dtype)
        same(f"the sum of {dtype.name}", summed(tf.distribute.ReduceOp.SUM), total)
        if RANKS > 1 or dtype.is_floating:
            same(f"what is gathered of {dtype.name}", gathered(), a)


def build():
    return keras.Sequential([keras.layers.Input((8, 8, 1)), keras.layers.Conv2D(4, 3, activation="relu"),
                             keras.layers.Flatten(), keras.layers.Dense(32, "tanh"), keras.layers.Dense(10)])


def alone(data):
    return check.train(build, lambda: keras.optimizers.Adam(1e-2),
                       lambda model, x, y: tf.reduce_mean(said(y, model(x, training=True))), data, "CPU:0")


def loop(data):
    """A training loop of one's own: each device has its part of each batch."""
    want, losses, first = alone(data), [], None
    keras.utils.set_random_seed(0)
    with S.scope():
        model, adam = build(), keras.optimizers.Adam(1e-2)
        adam.build(model.trainable_variables)

    @tf.function
    def step(x, y):
        def on_each(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(said(y, model(x, training=True))) / (BATCH * N)
            context = tf.distribute.get_replica_context()
            grads = context.all_reduce("SUM", tape.gradient(loss, model.trainable_variables))
            adam.apply(grads, model.trainable_variables)
            return context.all_reduce("SUM", loss), grads
        return S.run(on_each, (x, y))

    def part(array):
        return S.experimental_distribute_values_from_function(
            lambda context: tf.constant(array[context.replica_id_in_sync_group::N]))

    for x, y in data:
        loss, grads = step(part(x), part(y))
        losses.append(float(S.experimental_local_results(loss)[0]))
        first = first or [np.asarray(S.experimental_local_results(grad)[0]) for grad in grads]
    for weight, got, wanted in zip(want[0].trainable_variables, first, want[2]):
        check.close(f"the gradient of {weight.path}", got, wanted, 1e-4)
        check.note(got)
    check.close("the losses", losses, want[1], 1e-3)
    check.note(losses, [weight.numpy() for weight in model.weights])


def fit(x, y):
    """Keras's own loop, with tf.data; until it is right."""
    keras.utils.set_random_seed(0)
    with S.scope():
        model = build()
        model.compile(keras.optimizers.Adam(1e-2), keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                      metrics=["accuracy"])
    feed = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH * N, drop_remainder=True)
    seen = model.fit(feed, epochs=4, verbose=0).history
    check.expect(seen["accuracy"][-1] > 0.9, f"it is right in {seen['accuracy'][-1]:.0%} only")
    check.note(list(seen.values()), [weight.numpy() for weight in model.weights])


BATCH = 8
S = strategy()
N = S.num_replicas_in_sync
check.expect(N > 1 and N == max(RANKS, len(tf.config.list_logical_devices("GPU"))), f"there are {N} devices")
check.repeatable()
operations()
x, y = check.pictures(32 * BATCH)
loop(check.batches((x, y), BATCH * N)[:6])
if RANKS == 1:  # Keras 3 does not take the batches of several processes
    fit(x, y)
if RANK == 0:
    check.finish()
