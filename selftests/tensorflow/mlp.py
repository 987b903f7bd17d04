# SPDX-License-Identifier: Apache-2.0
"""A multilayer perceptron with Keras: compile, fit with tf.data, a schedule, metrics and callbacks,
evaluate, predict; saved and loaded again; its losses against the CPU's, op by op and by XLA."""
import os
import tempfile

import keras
import numpy as np
import tensorflow as tf

import check


def build():
    return keras.Sequential([keras.layers.Input((8, 8, 1)), keras.layers.Flatten(),
                             keras.layers.Dense(64, "gelu"), keras.layers.LayerNormalization(),
                             keras.layers.Dense(32, "relu"), keras.layers.Dense(10)])


def adam():
    return keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(3e-3, 200), clipnorm=1.0)


said = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
check.repeatable()
x, y = check.pictures(1280)
data = check.batches((x[:512], y[:512]), 64)
for jit in (False, True):
    check.compare(build, adam, lambda model, x, y: said(y, model(x, training=True)), data, 1e-4, jit=jit)

keras.utils.set_random_seed(0)
model = build()
model.compile(adam(), said, metrics=["accuracy"])
feed = tf.data.Dataset.from_tensor_slices((x[:1024], y[:1024])).shuffle(1024, seed=0).batch(64).prefetch(2)
seen = model.fit(feed, epochs=8, verbose=0, callbacks=[keras.callbacks.TerminateOnNaN()],
                 validation_data=(x[1024:], y[1024:])).history
loss, right = model.evaluate(x[1024:], y[1024:], verbose=0)
check.expect(right > 0.9, f"it is right in {right:.0%} only")
check.expect("GPU:0" in model(x[:1]).device, "Keras computes elsewhere")
answers = model.predict(x[1024:], verbose=0)
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "model.keras")
    model.save(path)
    again = keras.models.load_model(path).predict(x[1024:], verbose=0)
check.expect((answers == again).all(), "the saved model answers otherwise")
check.note(list(seen.values()), answers, np.float32(loss))
check.finish()
