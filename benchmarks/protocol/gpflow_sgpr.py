"""GPflow's SGPR on data of a file, run with the Python of an environment that has GPflow; predictions go beside the file."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import time
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import gpflow
import numpy as np
import tensorflow as tf


class TimeIsOver(Exception):
    """Ends the optimiser."""


def main(file: Path) -> None:
    """Learn as long as time allows, predict, print what it took."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    data = np.load(file)
    X, Y, T = data["X"], data["Y"], data["T"]
    shift, scale = Y.mean(), Y.std()
    d, rows = X.shape[1], np.random.default_rng(int(data["seed"])).permutation(len(X))
    start = time.process_time()
    kernel = gpflow.kernels.SquaredExponential(lengthscales=np.full(d, 0.5 * np.sqrt(d)))
    model = gpflow.models.SGPR((X, (Y - shift) / scale), kernel, inducing_variable=X[rows[: int(data["size"])]].copy())
    model.likelihood.variance.assign(0.1)
    steps = 0

    def after(step: int, variables: object, values: object) -> None:
        nonlocal steps
        steps = step + 1
        if time.process_time() - start >= float(data["limit"]):
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)
            raise TimeIsOver

    with contextlib.suppress(TimeIsOver):
        gpflow.optimizers.Scipy().minimize(
            model.training_loss, model.trainable_variables, step_callback=after, options={"maxiter": 10_000}
        )
    seconds = time.process_time() - start
    mean, variance = (part.numpy() for part in model.predict_f(T))
    noisy = variance + float(model.likelihood.variance.numpy())
    np.savez(file.with_name("found.npz"), mean=mean * scale + shift, variance=variance * scale**2, noisy=noisy * scale**2)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(json.dumps({"cpu_s": seconds, "steps": steps, "peak_mb": peak}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
