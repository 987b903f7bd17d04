# SPDX-License-Identifier: Apache-2.0
"""CatBoost: classes and regression on the device, with a categorical feature, depth-wise trees and early
stopping; against its CPU's predictions."""
import catboost
import numpy as np

import check

random = np.random.default_rng(0)
x = random.normal(0, 1, (1500, 6)).astype(np.float32)
kind = random.integers(0, 4, 1500)
y = x[:, 0] * x[:, 1] + np.sin(x[:, 2]) + (kind == 2)
rows = [list(map(float, row)) + [f"kind {k}"] for row, k in zip(x, kind)]
common = dict(iterations=40, depth=4, learning_rate=0.2, random_seed=0, verbose=False, allow_writing_files=False)


def train(device, what, label, **more):
    model = what(task_type=device, **common, **more)
    data = catboost.Pool(rows, label, cat_features=[6])
    model.fit(data, eval_set=catboost.Pool(rows[1200:], label[1200:], cat_features=[6]))
    return model, model.predict(rows)


model, got = train("GPU", catboost.CatBoostRegressor, y)
_, want = train("CPU", catboost.CatBoostRegressor, y)
check.expect(np.std(got - y) < 0.5 * np.std(y), "it does not learn")
check.expect(np.std(got - want) < 0.25 * np.std(y), "it predicts otherwise than the CPU's")
check.note(got)
label = (y > 0.3).astype(int)
_, classes = train("GPU", catboost.CatBoostClassifier, label, grow_policy="Depthwise", bootstrap_type="Bernoulli")
check.expect((classes == label).mean() > 0.85, f"it is right in {(classes == label).mean():.0%}")
check.note(classes)
check.finish()
