"""Members of groups try again soon."""

import pytest


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("martlet.client.group.session.ERROR_PAUSE_S", 0.02)
