"""Fixtures that every numeric test takes: where and in which precision it runs."""

from __future__ import annotations

import gc
import random
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import second_device
from tests.pretend_device import PRETEND, pretend_device

torch.set_num_threads(1)  # see tests/__init__.py


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device",
        metavar="NAME",
        help="run what depends on the device, on this one: 'second' (made of host memory, needs g++), 'cuda', 'cuda:1', "
        "'pretend'. Default: everything, on the CPU and on a GPU if there is one",
    )
    parser.addoption(
        "--rounding",
        type=int,
        default=0,
        metavar="UNITS",
        help="with --device second: sums, products and solves there are off by up to so many units of round-off",
    )


def pytest_configure(config: pytest.Config) -> None:
    name = config.getoption("--device")
    if name == second_device.NAME:
        if not second_device.can_be_built():
            raise pytest.UsageError("--device second needs g++ to build the device; install it")
        # One per process: a second session in it, such as xdist's, finds it there.
        config.stash[SECOND] = second_device.Second(second_device.built(config.cache.mkdir("second_device")))
        config.stash[SECOND].round(config.getoption("--rounding"))
    elif name not in (None, "cpu", "pretend") and not torch.cuda.is_available():
        raise pytest.UsageError(f"--device {name} was asked for, but torch sees no CUDA device")


SECOND = pytest.StashKey[second_device.Second]()
ON_DEVICES = {"device", "accelerator", "second"}
"""Fixtures whose tests ``--device`` selects."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    own = any("device" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if "device" in metafunc.fixturenames and not own:
        name = metafunc.config.getoption("--device")
        everywhere = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
        metafunc.parametrize("device", everywhere if name is None else [name], indirect=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without looking for garbage, and never look at what is there then: modules and tests stay to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mark_unsampled(items)
    name = config.getoption("--device") or ("cuda" if torch.cuda.is_available() else "")
    for item in items:  # so that -m gpu selects whatever runs on a card
        given = item.callspec.params.get("device") if isinstance(item, pytest.Function) and hasattr(item, "callspec") else None
        if given == "cuda" or (name.startswith("cuda") and "accelerator" in _fixtures(item)):
            item.add_marker(pytest.mark.gpu)
    if config.getoption("--device") is None:
        return
    chosen = [item for item in items if ON_DEVICES.intersection(_fixtures(item))]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


def mark_unsampled(items: list[pytest.Item]) -> None:
    """Mark cases of tests with ``@pytest.mark.sampled`` as slow, except a sample, which depends on the test's name alone.

    Without an argument the sample has every value of every argument at least once; ``sampled(n)`` has ``n`` cases, and as many
    of the values as these can have.
    """
    tests = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") and not item.get_closest_marker("slow"):
            tests[item.nodeid.partition("[")[0]].append(item)
    for name, cases in tests.items():
        count = next(iter(cases[0].get_closest_marker("sampled").args), None)
        random.Random(name).shuffle(cases)
        values = {item: {(name, _key(value)) for name, value in item.callspec.params.items()} for item in cases}
        missing = set().union(*values.values())
        while cases and (missing if count is None else count > 0):
            chosen = max(cases, key=lambda item: len(missing & values[item]))
            cases.remove(chosen)
            missing -= values[chosen]
            count = count and count - 1
        for item in cases:
            item.add_marker(pytest.mark.slow)


def _key(value: Any) -> Any:
    """Return a hashable key of an argument, the same for the same argument."""
    return value if isinstance(value, (str, int, float)) else id(value)


def _fixtures(item: pytest.Item) -> set[str]:
    """Return the names of the fixtures that a test takes, without the parameters that it has itself."""
    own = {name for mark in item.iter_markers("parametrize") for name in str(mark.args[0]).split(",")}
    return set(getattr(item, "fixturenames", ())) - own


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Where a test computes: on the CPU and on a GPU if there is one, or where ``--device`` says."""
    if request.param != "pretend":
        yield torch.device(request.param)
        return
    with pretend_device():
        yield PRETEND


@pytest.fixture
def accelerator(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Another device than the CPU: what ``--device`` says, else the GPU, else the one that is pretended."""
    name = request.config.getoption("--device") or ("cuda" if torch.cuda.is_available() else "pretend")
    if name == "cpu":
        pytest.skip("the CPU is not another device")
    if name != "pretend":
        yield torch.device(name, 0) if ":" not in name else torch.device(name)
        return
    with pretend_device():
        yield PRETEND


@pytest.fixture
def second(request: pytest.FixtureRequest) -> second_device.Second:
    """The second device, for what only a device that C++ knows can show."""
    if SECOND not in request.config.stash:
        pytest.skip("shown on the second device: pytest --device second")
    return request.config.stash[SECOND]


@pytest.fixture
def undrawn_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save PNG files without drawing them, which takes longer than the short runs of tests."""
    from matplotlib.figure import Figure

    draw = Figure.savefig

    def save(figure: Figure, path: Any, **settings: Any) -> None:
        if settings.get("format", Path(path).suffix.lstrip(".") if isinstance(path, (str, Path)) else None) == "png":
            data = b"\x89PNG\r\n\x1a\n"
            path.write(data) if hasattr(path, "write") else Path(path).write_bytes(data)
        else:
            draw(figure, path, **settings)

    monkeypatch.setattr(Figure, "savefig", save)


@pytest.fixture(params=[torch.float64, torch.float32], ids=["float64", "float32"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture
def generator() -> torch.Generator:
    """A seeded CPU generator: the only randomness a test may use."""
    return torch.Generator().manual_seed(0)
