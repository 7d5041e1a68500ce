"""Characters that hide or turn text are written out."""

from __future__ import annotations

import pytest

from martlet.visible import visible


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("orders", "orders"),
        ("Grüße 世界 🙂", "Grüße 世界 🙂"),
        ("a\tb\nc", "a\tb\nc"),
        ("evil\u202etxt.exe", "evil\\u202etxt.exe"),
        ("\u2066a\u2069", "\\u2066a\\u2069"),
        ("a\0b", "a\\u0000b"),
        ("\x1b[31mred\x1b[0m", "\\u001b[31mred\\u001b[0m"),
        ("a\u200bb\ufeff", "a\\u200bb\\ufeff"),
        ("a\rb\x85", "a\\u000db\\u0085"),
        ("a\u2028b\u2029", "a\\u2028b\\u2029"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        ("\ue000\U0010fffd", "\\ue000\\U0010fffd"),
    ],
)
def test_characters_that_hide_or_turn_text_are_written_out(text: str, expected: str) -> None:
    assert visible(text) == expected


def test_a_shown_text_can_be_sent() -> None:
    everything = "".join(map(chr, range(0x110000)))
    visible(everything).encode()
