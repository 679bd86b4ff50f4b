"""Importing and using the package changes nothing of PyTorch, GPyTorch, linear_operator and BoTorch.

Each night: a process imports every module of these.
"""

import subprocess
import sys

import pytest


def changes(*code: str) -> str:
    command = [sys.executable, "-m", "tests.models.use_everything", *code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


@pytest.mark.slow
def test_nothing_of_the_hosts_is_changed():
    assert changes() == "untouched"


CHANGES = {
    "botorch.acquisition.logei.prune_inferior_points = print": "('botorch.acquisition.logei', 'prune_inferior_points')",
    "botorch.models.gpytorch.ModelListGPyTorchModel.posterior = print": "'ModelListGPyTorchModel', 'posterior')",
    "gpytorch.models.ExactGP.added = 1": "new: ('gpytorch.models', 'ExactGP', 'added')",
    "gpytorch.settings.fast_pred_var._set_state(not gpytorch.settings.fast_pred_var.on())": "fast_pred_var",
    "torch.set_num_threads(torch.get_num_threads() + 1)": "flag threads",
}


@pytest.mark.slow
def test_changes_are_found():
    found = changes("\n".join(CHANGES))
    assert [change for change, name in CHANGES.items() if name not in found] == []
