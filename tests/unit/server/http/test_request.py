import socket
from unittest.mock import Mock

import pytest
from aiohttp.test_utils import make_mocked_request
from hypothesis import given
from hypothesis import strategies as st
from tests.interop.server.http.http_cases import sized

from martlet.server.http.nsq_api import split_binary
from martlet.server.http.request import HttpError, Request, parse_query


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("topic=t", {"topic": "t"}),
        ("topic=t&channel=c", {"topic": "t", "channel": "c"}),
        ("topic=first&topic=second", {"topic": "first"}),
        ("&&topic=t&", {"topic": "t"}),
        ("binary", {"binary": ""}),
        ("a=b=c", {"a": "b=c"}),
        ("a+b=c+d", {"a b": "c d"}),
        ("t=%23e%2B%C3%BC", {"t": "#e+\u00fc"}),
        ("t=%ff", {"t": "\ufffd"}),
    ],
)
def test_cuts_a_query(text: str, expected: dict[str, str]) -> None:
    assert parse_query(text) == expected


@pytest.mark.parametrize("text", ["a=%", "a=%1", "a=%zz", "%x=1", "a=1;b=2", "a=1&b=%2"])
def test_queries_that_go_refuses_are_refused(text: str) -> None:
    with pytest.raises(HttpError) as caught:
        parse_query(text)
    assert (caught.value.status, caught.value.message) == (400, "INVALID_REQUEST")


@given(st.text())
def test_no_query_raises_anything_else(text: str) -> None:
    try:
        parse_query(text)
    except HttpError:
        pass


@given(st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=20), st.binary())
def test_joined_bodies_are_split_again(bodies: list[bytes], behind: bytes) -> None:
    assert split_binary(sized(*bodies) + behind, 20, 10_000) == bodies


@given(st.binary(max_size=100))
def test_no_body_raises_anything_else(body: bytes) -> None:
    refused, bodies = "", list[bytes]()
    try:
        bodies = split_binary(body, 20, 10_000)
    except HttpError as error:
        refused = error.message
    assert refused in ("BAD_BODY", "BAD_MESSAGE") or body.startswith(sized(*bodies))


def test_a_client_at_a_loopback_address_is_on_this_machine_unless_a_proxy_has_another() -> None:
    infos = {"peername": ("127.0.0.1", 4000), "socket": Mock(family=socket.AF_INET)}
    transport = Mock(get_extra_info=infos.get)
    assert Request(make_mocked_request("GET", "/", transport=transport)).is_local
    for name in ("Forwarded", "x-forwarded-for"):
        proxied = make_mocked_request("GET", "/", {name: ""}, transport=transport)
        assert not Request(proxied).is_local
