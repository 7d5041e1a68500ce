"""JSON as Go writes it."""

from __future__ import annotations

import pytest

from martlet.go_json import go_json


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [1, None, True], "b": {}}, '{"a":[1,null,true],"b":{}}'),
        ("<a href='x?y&z'>", "\"\\u003ca href='x?y\\u0026z'\\u003e\""),
        ("b\u00fc\u2028\u2029", '"b\u00fc\\u2028\\u2029"'),
        ("\ud800 and \U0001f600", '"\ufffd and \U0001f600"'),
        ('"\\\n\x01\x7f', '"\\"\\\\\\n\\u0001\x7f"'),
    ],
)
def test_it_is_compact_and_harmless_in_a_page(value: object, text: str) -> None:
    assert go_json(value) == text
