# SPDX-License-Identifier: Apache-2.0
"""XGBoost: histogram trees on the device: regression from a quantile matrix, classes, missing and
categorical features, a model saved and loaded, contributions; against its CPU trees."""
import os
import tempfile

import numpy as np
import xgboost as xgb

import check

random = np.random.default_rng(0)
x = random.normal(0, 1, (2000, 8)).astype(np.float32)
x[random.random(x.shape) < 0.05] = np.nan
x[:, 7] = random.integers(0, 5, 2000)
full = np.nan_to_num(x)
y = full[:, 0] * full[:, 1] + np.sin(full[:, 2]) + (full[:, 7] == 3) + 0.1 * random.normal(size=2000)
kinds = ["q"] * 7 + ["c"]


def train(device, objective, label, matrix=xgb.DMatrix, **more):
    data = matrix(x, label, feature_types=kinds, enable_categorical=True)
    seen = {}
    with xgb.config_context(verbosity=0):
        model = xgb.train({"objective": objective, "device": device, "max_depth": 4, "seed": 0, **more}, data, 6,
                          evals=[(data, "train")], evals_result=seen, verbose_eval=False)
        return model, next(iter(seen["train"].values())), model.predict(xgb.DMatrix(
            x, feature_types=kinds, enable_categorical=True))


for objective, label, matrix, more in (
        ("reg:squarederror", y, xgb.QuantileDMatrix, {}),
        ("multi:softprob", np.digitize(y, (-0.5, 0.5)), xgb.DMatrix, {"num_class": 3})):
    model, losses, got = train("cuda", objective, label, matrix, **more)
    check.expect("cuda" in model.save_config(), "the training was not on the device")
    _, want_losses, want = train("cpu", objective, label, matrix, **more)
    check.close(f"losses of {objective}", losses, want_losses, 1e-3)
    # Cuts between bins, and so single trees, may differ.
    off = np.abs(got - want).mean() / np.abs(want).max()
    check.expect(off < 0.01, f"{objective} predicts otherwise: {off:.3f}")
    check.note(got)

model, _, got = train("cuda", "reg:squarederror", y)
given = xgb.DMatrix(x, feature_types=kinds, enable_categorical=True)
with tempfile.TemporaryDirectory() as folder:
    model.save_model(os.path.join(folder, "model.ubj"))
    again = xgb.Booster(model_file=os.path.join(folder, "model.ubj"))
    again.set_param("device", "cuda")
    check.close("what the saved model predicts", again.predict(given), got, 0)
shares = model.predict(given, pred_contribs=True)
check.close("the sum of contributions", shares.sum(1), got, 1e-4)
check.finish()
