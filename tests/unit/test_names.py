"""NSQ's rule for names."""

import pytest

from martlet.names import is_ephemeral, is_valid_name


@pytest.mark.parametrize(
    "name", ["a", ".", "-_.", "A9", "x" * 64, "x#ephemeral", "x" * 54 + "#ephemeral"]
)
def test_valid_names(name: str) -> None:
    assert is_valid_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("", "x" * 65, "x" * 55 + "#ephemeral"),
        *("#ephemeral", "a#", "a#ephemeral#ephemeral", "a#Ephemeral", "a#ephemeralx"),
        *("a b", "a\n", "a/b", "\u00e4", "\u0661"),
    ],
)
def test_invalid_names(name: str) -> None:
    assert not is_valid_name(name)


def test_ephemeral_names() -> None:
    assert is_ephemeral("a#ephemeral")
    assert not is_ephemeral("a")
