# SPDX-License-Identifier: Apache-2.0
"""Trains with dropout on noisy pictures and prints every loss with the samples' order; at the end a checksum
of losses, order, weights, the optimiser's state and all random number generators. For tests that save it midway.
steps.py STEPS [PAUSE]: with a pause of so many seconds after each step."""
import hashlib
import random
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import check

check.repeatable()
tf.random.set_global_generator(tf.random.Generator.from_seed(0))
layers = keras.layers
model = keras.Sequential([layers.Input((8, 8, 1)), layers.Conv2D(8, 3, padding="same", activation="relu"),
                          layers.Dropout(0.2), layers.Flatten(), layers.Dense(10)])
adam = keras.optimizers.AdamW(1e-3)
said = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = said(y, model(x, training=True))
    adam.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return loss


x, y = check.pictures(1024)
noisy = tf.data.Dataset.from_tensor_slices((x, y, range(1024))).shuffle(1024, seed=0).repeat().batch(16)
for i, (x, y, order) in enumerate(noisy.prefetch(2).take(int(sys.argv[1]))):
    loss, order = float(step(x, y)), order.numpy()
    check.note(loss, order)
    noise = float(tf.random.get_global_generator().uniform(()))
    print("step", i + 1, loss, hashlib.sha256(order.tobytes()).hexdigest()[:8], noise, random.random(), flush=True)
    time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 0)
# Those of dropout are variables of the model.
check.note([value.numpy() for value in model.variables + adam.variables], tf.random.get_global_generator().state)
check.digest.update(repr((np.random.get_state(), random.getstate())).encode())
check.finish()
