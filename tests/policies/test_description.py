"""Policies as plain data: those that an older version described are read by their names now."""

from types import SimpleNamespace

import pytest

from sparse_bo import GSSBO
from sparse_bo.domains import Box
from sparse_bo.policies import QFFTS, REMBO, RSSBO, SGPTS, BoTorchUCB, SparseUCB, VecchiaUCB
from sparse_bo.policies.description import RENAMED, describe, fingerprint, rebuild, up_to_date
from sparse_bo.runs.records import about_run, policy_of
from tests.builders import unit_box
from tests.policies.builders import SMALL, keep_parameters

THROUGH_BOTORCH = (BoTorchUCB, GSSBO, RSSBO, SparseUCB, VecchiaUCB, SGPTS, QFFTS)


def older(description):
    """Return what the version before wrote, where ``fitter`` was ``fit``."""
    if not isinstance(description, dict):
        return description
    parts = {("fit" if name == "fitter" else name): older(part) for name, part in description.items()}
    return parts | {"value": f"sparse_bo.somewhere:{parts['value']}"} if "value" in parts else parts


@pytest.mark.parametrize("kind", THROUGH_BOTORCH)
def test_a_field_renamed_since_is_read(kind):
    policy = kind(**SMALL, batch_size=2)
    assert "fit" in older(describe(policy))["fields"]
    assert describe(rebuild(older(describe(policy)))) == describe(policy)


def test_a_field_renamed_since_is_read_inside_another_policy():
    policy = REMBO(inner=GSSBO(**SMALL, buffer=9), target_dims=3)
    assert describe(rebuild(older(describe(policy)))) == describe(policy)
    assert up_to_date(older(describe(policy))) == describe(policy)


def test_every_renamed_field_has_the_new_name_and_no_longer_the_old():
    for kind in THROUGH_BOTORCH:
        for before, now in RENAMED[kind.__name__].items():
            assert now in kind.__dataclass_fields__
            assert before not in kind.__dataclass_fields__
    assert set(RENAMED) == {kind.__name__ for kind in THROUGH_BOTORCH}


def test_a_policy_passed_to_an_older_journal_is_compared_by_the_names_now():
    policy = GSSBO(**SMALL, fitter=keep_parameters)
    before = older(describe(policy))
    about = about_run(Box(unit_box()), policy, seed=0, certify_every=None, notes={})
    journal = SimpleNamespace(path="run.db", about={**about, "description": before, "fingerprint": fingerprint(before)})
    assert policy_of(journal, policy) is policy
    with pytest.raises(ValueError, match=r"gssbo with other settings: width$"):
        policy_of(journal, GSSBO(**SMALL, fitter=keep_parameters, width=3.0))
    with pytest.raises(ValueError, match=r"gssbo with other settings: fitter$"):
        policy_of(journal, GSSBO(**SMALL))
    assert fingerprint(describe(policy)) == fingerprint(older(describe(policy)))


def test_a_field_that_no_version_has_is_refused():
    description = describe(GSSBO(**SMALL))
    description["fields"]["fitness"] = None
    with pytest.raises(TypeError, match="fitness"):
        rebuild(description)
