"""Commands of these tests save pictures without drawing them, except where a test asks for ``drawn``."""

import pytest


@pytest.fixture
def drawn() -> None:
    """Figures are drawn."""


@pytest.fixture(autouse=True)
def figures(request: pytest.FixtureRequest) -> None:
    if "drawn" not in request.fixturenames:
        request.getfixturevalue("undrawn_figures")
