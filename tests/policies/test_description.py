"""Policies as JSON values: rebuilt equal, compared by their settings."""

from types import SimpleNamespace

import pytest

from sparse_bo import GSSBO
from sparse_bo.domains import Box
from sparse_bo.policies import QFFTS, REMBO, RSSBO, SGPTS, BoTorchUCB, SparseUCB, VecchiaUCB
from sparse_bo.policies.persistence import describe, fingerprint, rebuild
from sparse_bo.runs.description import about_run, policy_of
from tests.builders import unit_box
from tests.policies.builders import SMALL, keep_parameters

THROUGH_BOTORCH = (BoTorchUCB, GSSBO, RSSBO, SparseUCB, VecchiaUCB, SGPTS, QFFTS)


@pytest.mark.parametrize("kind", THROUGH_BOTORCH)
def test_a_policy_is_rebuilt_equal(kind):
    description = describe(kind(**SMALL, batch_size=2))
    assert describe(rebuild(description)) == description


def test_a_policy_inside_another_is_rebuilt_equal():
    description = describe(REMBO(inner=GSSBO(**SMALL, buffer=9), target_dims=3))
    assert describe(rebuild(description)) == description


def test_a_policy_passed_to_a_recorded_run_is_compared_by_its_settings():
    policy = GSSBO(**SMALL, fitter=keep_parameters)
    journal = SimpleNamespace(
        path="run.journal", about=about_run(Box(unit_box()), policy, seed=0, certify_every=None, notes={})
    )
    assert policy_of(journal, policy) is policy
    assert journal.about["fingerprint"] == fingerprint(describe(policy))
    with pytest.raises(ValueError, match=r"gssbo with other settings: width$"):
        policy_of(journal, GSSBO(**SMALL, fitter=keep_parameters, width=3.0))
    with pytest.raises(ValueError, match=r"gssbo with other settings: fitter$"):
        policy_of(journal, GSSBO(**SMALL))


def test_a_field_or_class_of_another_version_is_refused():
    description = describe(GSSBO(**SMALL))
    description["fields"]["fitness"] = None
    with pytest.raises(TypeError, match="fitness"):
        rebuild(description)
    with pytest.raises(ValueError, match="GSSBO2 is not a value of this version"):
        rebuild({"value": "GSSBO2", "fields": {}})
