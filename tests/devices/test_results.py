"""Every public method of a loop, its result and its history, with the domain on another device than the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sparse_bo import BBKB, SBPE, AskTell, History
from tests.builders import arms, rbf_kernel, unit_box, waves

PRIOR = {"covar_module": rbf_kernel(0.3), "regularization": 0.05}
RUNS: dict[str, tuple[str, Callable[[], torch.Tensor], Any]] = {
    "arms": ("arms", lambda: arms(60), BBKB(**PRIOR, ratio_threshold=2.0)),
    "improvement over arms": ("arms", lambda: arms(60), None),
    "elimination": ("arms", lambda: arms(60), SBPE(**PRIOR, horizon=40, rkhs_norm=2.0)),
    "box": ("bounds", unit_box, BBKB(**PRIOR, initial_design=4)),
    "trust region": ("bounds", unit_box, None),
    "outcomes": ("bounds", unit_box, None),
    "outcomes over arms": ("arms", lambda: arms(60), None),
}
OUTCOMES = {"objectives": {"y": "max", "cost": "min"}, "constraints": {"cost": (None, 0.9)}}


def outcomes(X):
    return torch.stack([waves(X), X[:, 0]], dim=-1)


@pytest.mark.parametrize("name", RUNS)
def test_every_method_works_and_agrees_with_the_cpu(name, accelerator, tmp_path: Path):
    keyword, make, policy = RUNS[name]
    several = OUTCOMES if name.startswith("outcomes") else {}
    objective = outcomes if several else waves
    called = {}
    for device in (accelerator, torch.device("cpu")):
        path = tmp_path / f"{device.type}.journal"
        how = {keyword: make().to(device), **several}
        certify_every = 2 if isinstance(policy, BBKB) and keyword == "arms" else None
        loop = AskTell(policy=policy, seed=4, certify_every=certify_every, storage=path, budget=20, **how)
        batch = loop.ask(2)
        assert loop.pending == loop.reissue().tickets == batch.tickets
        assert loop.reissue(batch.tickets).X.device == batch.X.device == batch.picks.device
        loop.fail(batch.tickets[:1])
        loop.tell(torch.tensor(batch.tickets[1:], device=device), objective(batch.X[1:]))
        loop.run(objective, 14)
        loop.release()
        loop.tell((more := loop.ask(1)).tickets, objective(more.X))
        result, certificate = loop.result(), loop.certificate()
        result.to_pandas()
        fronts = [point.ticket for point in result.pareto_front] if several else []
        importance = result.importance_by_outcome if several else result.importance
        shown = result.report(tmp_path / f"{device.type}.html")
        assert f"Slices through the {'front' if several else 'best point'}" in shown or keyword == "arms"
        regret = None if several else [0.5] * result.history.observations
        result.plot(tmp_path / f"{device.type}.png", regret=regret)
        points = torch.arange(3, device=device) if keyword == "arms" else batch.X[:1]
        columns = ["value"] if not several else ["y", "cost"]
        if name == "elimination":
            predicted = []  # without a model
        else:
            predicted = [result.predict(at)[column] for at in (points, points.cpu()) for column in columns]
        history = result.history
        history.save(tmp_path / f"{device.type}.jsonl")
        columns = {column: history.column(column) for column in History.load(tmp_path / f"{device.type}.jsonl").rows[0].plain()}
        values = {
            "AskTell": [loop.asked, loop.policy, loop.state.pulls, loop.about["seed"], certificate and certificate.factor],
            "Result": [
                repr(result),
                result._repr_html_(),
                result.best_index,
                result.best_mean,
                result.best_x,
                result.hypervolume,
                fronts,
                importance is None,
            ],
            "predict": predicted,
            "History": [history.batches().sizes, history.indices, history.points, history.calibration, history.parameters],
        }
        assert history.plot(best_possible=None if several else 3.0) is not None
        assert columns["values"] == [row.values for row in history.rows]
        for held in vars(result).values():
            assert not isinstance(held, torch.Tensor) or held.device == device
        loop.close()
        with AskTell.resume(path, device=device) as again:
            assert again.history.indices == history.indices
        called[device.type] = values
    there, here = called.values()
    assert [there["Result"][2], there["History"][1]] == [here["Result"][2], here["History"][1]]
    assert (here["Result"][5] is None) == (not several)
    for one, other in zip(there["predict"], here["predict"], strict=True):
        assert one == pytest.approx(other, abs=1e-4)
    if several:
        assert there["Result"][5] == pytest.approx(here["Result"][5], abs=1e-4)
        return
    torch.testing.assert_close(there["Result"][4].cpu(), here["Result"][4], rtol=0.0, atol=1e-5)
    assert there["Result"][3] == pytest.approx(here["Result"][3], abs=1e-4)
