"""NSQ's rule for names, and the rule of ids."""

import pytest

from martlet.names import is_ephemeral, is_message_id, is_valid_name


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


def test_an_id_has_16_hexadecimal_digits() -> None:
    assert is_message_id("0123456789abcdef")
    for text in ("", "0" * 15, "0" * 17, "0" * 15 + "A", "0" * 15 + "g", "0" * 16 + "\n"):
        assert not is_message_id(text)
