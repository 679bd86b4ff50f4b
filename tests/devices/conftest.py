"""What is here takes a device: ``--device second``, or a GPU. On the pretended one it would take as long as all else."""

import pytest
import torch


@pytest.fixture
def accelerator(request: pytest.FixtureRequest) -> torch.device:
    """The device of ``--device``, else the GPU."""
    name = request.config.getoption("--device") or ("cuda" if torch.cuda.is_available() else "cpu")
    if name in ("cpu", "pretend"):
        pytest.skip("needs another device: pytest --device second")
    device = torch.device(name)
    return torch.device(device.type, device.index or 0)
