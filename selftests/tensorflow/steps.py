# SPDX-License-Identifier: Apache-2.0
"""Trains with dropout on noisy pictures and prints every loss: for test-tensorflow, which saves it
midway. steps.py STEPS [PAUSE]: with a pause of so many seconds after each step."""
import sys
import time

import keras
import tensorflow as tf

import check

check.repeatable()
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


noisy = tf.data.Dataset.from_tensor_slices(check.pictures(1024)).shuffle(1024, seed=0).repeat().batch(16)
for i, (x, y) in enumerate(noisy.prefetch(2).take(int(sys.argv[1]))):
    loss = float(step(x, y))
    check.note(loss)
    print("step", i + 1, loss, flush=True)
    time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 0)
check.note([weight.numpy() for weight in model.weights])
check.finish()
