"""How bodies are shown: what is JSON keeps its numbers, what is cut says so."""

from __future__ import annotations

import json

import pytest

from martlet.console.pages.bodies import BodyText, body_text


@pytest.mark.parametrize(
    "text",
    ['{"a": 1.10, "b": [1e400, -0, 12345678901234567890], "c": {}}', '[]', '[{"x\\"y": "a,b:{"}]',
     '{"a":{"b":[[]]}}', '  [1,\n2]  '],
)  # fmt: skip
def test_json_is_indented_and_else_as_it_was(text: str) -> None:
    shown = body_text(text.encode())
    assert shown.form == "json"
    assert json.loads(shown.text) == json.loads(text)
    for number in ("1.10", "1e400", "-0", "12345678901234567890"):
        assert (number in text) == (number in shown.text)
    if text.count(",") > 1:
        assert "\n  " in shown.text


@pytest.mark.parametrize("text", ["{", "[1,]", "1", "[" * 100_000, "", '{"a": 1} x'])
def test_what_is_no_json_is_text(text: str) -> None:
    shown = body_text(text.encode(), form="json")
    assert (shown.form, shown.text) == ("text", text[:20_000])


def test_a_body_is_cut_between_characters_and_says_so() -> None:
    body = "ä".encode() * 50
    assert body_text(body, max_bytes=51) == BodyText("ä" * 25, "text", 50, 100)
    assert body_text(body[:51], 100, max_bytes=99) == BodyText("ä" * 25, "text", 50, 100)
    assert body_text(body).is_cut is False
    assert body_text(body, max_bytes=51).is_cut is True


def test_other_bytes_are_shown_in_hexadecimal_digits() -> None:
    shown = body_text(bytes(range(30, 48)) + b"\xff")
    assert shown.form == "hex"
    assert shown.text == (
        "00000000  1e 1f 20 21 22 23 24 25  26 27 28 29 2a 2b 2c 2d  |.. !\"#$%&'()*+,-|\n"
        "00000010  2e 2f ff                                          |./.|"
    )
    assert body_text(b"\xff" * 100, max_bytes=100) == body_text(b"\xff" * 20, 100, max_bytes=100)
    assert body_text(b"text", form="hex").form == "hex"
    assert body_text(b"", 5).is_cut


def test_json_that_is_nested_too_deep_for_indents_is_text() -> None:
    for body in (b"[" * 900 + b"]" * 900, b'{"a":' * 300 + b"1" + b"}" * 300):
        assert body_text(body).text == body.decode()
