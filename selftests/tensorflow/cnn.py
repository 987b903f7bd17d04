# SPDX-License-Identifier: Apache-2.0
"""A convolutional network with Keras: cuDNN's convolutions with strides, by channel and transposed,
batch normalisation, dropout, pooling, augmentation; SGD with momentum; trained until it is right."""
import keras
import tensorflow as tf

import check

layers = keras.layers


def build(drop=0.0):
    return keras.Sequential([
        layers.Input((8, 8, 1)), layers.Conv2D(16, 3, padding="same", use_bias=False),
        layers.BatchNormalization(), layers.ReLU(), layers.DepthwiseConv2D(3, padding="same"),
        layers.MaxPooling2D(), layers.Conv2D(32, 3, strides=2, padding="same", activation="relu"),
        layers.Conv2DTranspose(8, 2, strides=2), layers.AveragePooling2D(2), layers.Dropout(drop),
        layers.Flatten(), layers.Dense(10)])


def sgd():
    return keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True)


said = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
check.repeatable()
x, y = check.pictures(768)
data = check.batches((x[:512], y[:512]), 32)
check.compare(build, sgd, lambda model, x, y: said(y, model(x, training=True)), data[:4], 5e-4)

keras.utils.set_random_seed(0)
model = build(0.1)
model.compile(sgd(), said, metrics=["accuracy"], jit_compile=False)
seen = model.fit(x[:512], y[:512], batch_size=32, epochs=6, verbose=0).history
loss, right = model.evaluate(x[512:], y[512:], verbose=0)
check.expect(right > 0.9, f"it is right in {right:.0%} only")
check.note(list(seen.values()), [weight.numpy() for weight in model.weights])
check.finish()
