"""The filter of a relay."""

from __future__ import annotations

import pytest

from martlet.cli.nsq_tools.relay import JsonFilter


@pytest.mark.parametrize(
    ("field", "value", "body", "passes"),
    [
        ("a", "", b'{"a": null}', True),
        ("a", "", b'{"b": 1}', False),
        ("a", "x", b'{"a": "x"}', True),
        ("a", "x", b'{"a": "y"}', False),
        ("a", "x", b'{"b": "x"}', False),
        ("a", "1", b'{"a": 1}', True),
        ("a", "1", b'{"a": "1"}', True),
        ("a", "1.0", b'{"a": 1}', True),
        ("a", "1", b'{"a": 1e0}', True),
        ("a", "1", b'{"a": true}', False),
        ("a", "true", b'{"a": true}', False),
        ("a", "x", b'{"a": ["x"]}', False),
        ("", "", b"{}", True),
    ],
)
def test_a_field_and_its_value(field: str, value: str, body: bytes, passes: bool) -> None:
    assert JsonFilter(field, value).passes(body) == (body if passes else None)


def test_only_some_fields_pass() -> None:
    filter = JsonFilter(fields=["n", "a", "none"])
    body = '{"b": 1, "n": 12345678901234567890, "a": {"ä": [1.50, "<"]}}'.encode()
    assert filter.passes(body) == '{"a":{"ä":[1.5,"<"]},"n":12345678901234567890}'.encode()
    assert filter.passes(b"{}") == filter.passes(b"null") == b"{}"
    assert filter.passes(b'{"n": 1e3, "a": 1.5}') == b'{"a":1.5,"n":1000}'


@pytest.mark.parametrize("body", [b"", b"x", b"[]", b'"a"', b"1", b'{"a": NaN}', b"[" * 99999])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        JsonFilter("a").passes(body)
