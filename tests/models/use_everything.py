"""A script that records every attribute of PyTorch, GPyTorch, linear_operator and BoTorch, uses the package, and compares.

``python -m tests.models.use_everything [CODE]`` prints the changes, or ``untouched``. CODE runs with the first import of ours.
"""

import importlib
import inspect
import pkgutil
import sys
import warnings
from importlib.abc import MetaPathFinder

import botorch
import gpytorch
import linear_operator
import numpy as np
import torch

HOSTS = ("torch", "gpytorch", "linear_operator", "botorch")


def import_hosts():
    """Import every module of theirs, before anything of ours."""
    for host in (gpytorch, linear_operator, botorch):
        for found in pkgutil.walk_packages(host.__path__, host.__name__ + "."):
            if not any(part in found.name.split(".") for part in ("test_utils", "testing", "test")):
                try:
                    importlib.import_module(found.name)
                except ImportError:  # of an optional library
                    continue
    for name, module in sorted(sys.modules.items()):  # BoTorch imports some names when they are used first
        if name.split(".")[0] in HOSTS[1:]:
            for exported in getattr(module, "__all__", []):
                getattr(module, exported)


def settings():
    modules = (gpytorch.settings, linear_operator.settings, botorch.settings)
    kinds = [kind for module in modules for kind in vars(module).values() if inspect.isclass(kind)]
    return {
        f"setting {kind.__module__}.{kind.__qualname__}.{name}": value
        for kind in kinds
        for name, value in vars(kind).items()
        if not callable(value) and not name.startswith("__")
    }


def flags():
    return {
        "flag threads": torch.get_num_threads(),
        "flag dtype": torch.get_default_dtype(),
        "flag device": torch.get_default_device(),
        "flag grad": torch.is_grad_enabled(),
        "flag deterministic": torch.are_deterministic_algorithms_enabled(),
        "flag matmul": torch.get_float32_matmul_precision(),
        "flag inference": torch.is_inference_mode_enabled(),
    }


def attributes():
    found = {}
    for name, module in sorted(sys.modules.items()):
        if module is None or name.split(".")[0] not in HOSTS:
            continue
        for key, value in list(vars(module).items()):
            found[name, key] = value
            if inspect.isclass(value) and value.__module__.split(".")[0] in HOSTS and not key.startswith("_"):
                found.update({(name, key, own): part for own, part in list(vars(value).items())})
    return found


def compared(before, after):
    modules = {key[0] for key in before}
    for key, value in after.items():
        if key[0] not in modules or (inspect.ismodule(value) and key not in before):  # imported since: not changed
            continue
        if key[-1] in ("__warningregistry__", "__annotations_cache__", "__slotnames__", "_abc_impl", "next_id"):
            continue
        if key not in before and inherited(key) is value:  # a context of GPyTorch's settings, left again
            continue
        if key not in before:
            yield f"new: {key}"
        elif before[key] is not value and not same(before[key], value):
            yield f"changed: {key}"
    yield from (f"gone: {key}" for key in before.keys() - after.keys())


def inherited(key):
    """Return the value that a class of theirs would have without one of its own."""
    bases = getattr(sys.modules[key[0]], key[1]).__mro__[1:] if len(key) == 3 else []
    return next((vars(base)[key[2]] for base in bases if key[2] in vars(base)), inspect)


def same(one, other):  # numbers and strings that were computed anew
    return type(one) is type(other) and isinstance(one, (bool, int, float, str, bytes, tuple)) and one == other


class Changing(MetaPathFinder):
    """Runs code when the package is first imported, as a module of it might."""

    def __init__(self, code):
        self.code = code

    def find_spec(self, name, path=None, target=None):
        if name == "sparse_bo" and self.code:
            code, self.code = self.code, ""
            exec(code, {name: sys.modules[name] for name in HOSTS})


def objective(x):
    return -((np.asarray(x) - 0.4) ** 2).sum(axis=-1)


def use_everything():
    from botorch.acquisition import qLogNoisyExpectedImprovement
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import ModelListGP
    from botorch.optim import optimize_acqf
    from botorch.sampling import SobolQMCNormalSampler
    from botorch.sampling.pathwise import draw_matheron_paths
    from gpytorch.mlls import ExactMarginalLogLikelihood

    import sparse_bo
    from sparse_bo import models

    for found in pkgutil.walk_packages(sparse_bo.__path__, "sparse_bo."):
        if found.name.split(".")[-1] not in ("__main__", "ax", "optuna", "ray", "triton_kernel", "triton_squares"):
            importlib.import_module(found.name)

    g = torch.Generator().manual_seed(0)
    X = torch.rand(40, 2, generator=g, dtype=torch.float64)
    Y = torch.sin(5 * X).sum(dim=-1, keepdim=True) + 0.1 * torch.randn(40, 1, generator=g, dtype=torch.float64)
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    small = models.SparseSettings(joint=models.JointSettings(dense=16))
    T = torch.cat([X[:, :1], (X[:, 1:] > 0.5).double()], dim=-1)
    for model in (
        sparse_bo.SparseGP(X, Y),
        sparse_bo.SparseGP(X, Y, max_dictionary=12, fit="subset", settings=small),
        sparse_bo.SparseMixedGP(T, Y, cat_dims=[1], max_dictionary=12),
        sparse_bo.SparseMultiTaskGP(T, Y, task_feature=1, max_dictionary=12),
        sparse_bo.SparseMultiFidelityGP(X, Y, data_fidelities=[1], max_dictionary=12),
    ):
        search = {"options": {"maxiter": 5}}  # what a search sets, it sets at its first step
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), optimizer_kwargs=search)
        inputs = X if type(model) in (sparse_bo.SparseGP, sparse_bo.SparseMultiFidelityGP) else T
        model.posterior(inputs).rsample(torch.Size([2]))
        model.leave_one_out(), model.dictionary, repr(model)
        model.condition_on_observations(inputs[:2], Y[:2]).posterior(inputs[:2]).mean.sum().backward()
    one, two = (sparse_bo.SparseGP(X, Y, max_dictionary=12, settings=small) for _ in range(2))
    one.certify(), one.calibrated(X + 0.01, Y, torch.full_like(Y, 1e-4))
    for several in (ModelListGP(one, two), models.SparseModelListGP(one, two)):
        several.posterior(X).rsample(torch.Size([2]))
    draw_matheron_paths(one, torch.Size([2]))(X)
    sparse_bo.SparseGP(torch.cat([X, X[:3] + 0.01]), torch.cat([Y, Y[:3]]), previous=sparse_bo.SparseGP(X, Y)).posterior(X[:2])
    models.fit_to_rows(sparse_bo.SparseGP(X, Y), torch.arange(20))
    baseline = models.prune_baseline(one, X)
    acquisition = qLogNoisyExpectedImprovement(one, baseline, sampler=SobolQMCNormalSampler(torch.Size([8]), seed=0))
    optimize_acqf(acquisition, bounds, q=2, num_restarts=2, raw_samples=8, options={"maxiter": 3})
    qLogNoisyExpectedImprovement(one, X)
    sparse_bo.optimize_batch(one, bounds, max_q=3)
    arms = torch.rand(60, 2, generator=g, dtype=torch.float64)
    for where in ({"bounds": bounds}, {"arms": arms}):
        sparse_bo.maximize(objective, budget=8, seed=0, **where)
    for policy in (sparse_bo.BKB(), sparse_bo.BBKB(), sparse_bo.GPUCB()):
        sparse_bo.maximize(objective, arms=arms, policy=policy, budget=8, seed=0)
    sparse_bo.maximize(objective, bounds=bounds, policy=sparse_bo.TrustRegion(), budget=4, seed=0)
    sparse_bo.maximize(objective, bounds=bounds, policy=sparse_bo.GSSBO(), budget=25, seed=0)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    import_hosts()
    sys.meta_path.insert(0, Changing("".join(sys.argv[1:])))
    before, set_before, flags_before = attributes(), settings(), flags()
    if len(sys.argv) == 1:
        use_everything()
    else:
        importlib.import_module("sparse_bo.models")
    changes = list(compared(before, attributes()))
    changes += [f"setting: {name}" for name, value in settings().items() if set_before.get(name, value) is not value]
    changes += [f"flag: {name}" for name, value in flags().items() if flags_before[name] != value]
    print("\n".join(sorted(changes)) or "untouched")
