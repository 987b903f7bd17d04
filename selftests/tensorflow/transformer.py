# SPDX-License-Identifier: Apache-2.0
"""A transformer that learns to repeat a sequence: Keras's attention with a causal mask, embeddings,
norms; in f32, by XLA too; mixed precision in bf16 and, with a scaled loss, f16; an LSTM beside it."""
import keras
import numpy as np
import tensorflow as tf

import check

WORDS, LENGTH, WIDTH, HEADS = 16, 16, 32, 4
layers = keras.layers


def build():
    text = layers.Input((LENGTH - 1,), dtype="int32")
    x = layers.Embedding(WORDS, WIDTH)(text) + layers.Embedding(LENGTH, WIDTH)(np.arange(LENGTH - 1)[None])
    for _ in range(2):
        near = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(HEADS, WIDTH // HEADS, use_bias=False)(near, near, use_causal_mask=True)
        up = layers.Dense(4 * WIDTH, "gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(WIDTH)(up)
    return keras.Model(text, layers.Dense(WORDS, dtype="float32")(x))


def recurrent():
    return keras.Sequential([layers.Input((LENGTH - 1,), dtype="int32"), layers.Embedding(WORDS, WIDTH),
                             layers.LSTM(WIDTH, return_sequences=True),
                             layers.GRU(WIDTH, return_sequences=True), layers.Dense(WORDS)])


def loss_of(model, text):
    losses = keras.losses.sparse_categorical_crossentropy(text[:, 1:], model(text[:, :-1], training=True), True)
    return tf.reduce_mean(losses[:, LENGTH // 2 - 1:])


def adam():
    return keras.optimizers.Adam(3e-3)


def scaled():
    return keras.optimizers.LossScaleOptimizer(adam(), initial_scale=2.0 ** 60)


check.repeatable()
random = np.random.default_rng(1)
half = random.integers(1, WORDS, (1024, LENGTH // 2)).astype(np.int32)
texts = np.concatenate([half, half], 1)
data = check.batches((texts,), 32)
check.compare(build, adam, loss_of, data[:4], 2e-4)
check.compare(build, adam, loss_of, data[:4], 2e-4, jit=True)
check.compare(recurrent, adam, loss_of, data[:2], 2e-4)

keras.mixed_precision.set_global_policy("mixed_bfloat16")
check.compare(build, adam, loss_of, data[:2], 6e-2, drift=2)
keras.mixed_precision.set_global_policy("mixed_float16")
model, losses, _ = check.train(build, scaled, loss_of, data[:30], "GPU:0")
check.note(losses, [weight.numpy() for weight in model.weights])
keras.mixed_precision.set_global_policy("float32")

model, losses, _ = check.train(build, adam, loss_of, data * 4, "GPU:0", jit=True)
check.expect(losses[-1] < 0.7 * losses[0], f"it does not learn: {losses[0]:.3f}, {losses[-1]:.3f}")
check.note(losses, [weight.numpy() for weight in model.weights])
check.finish()
