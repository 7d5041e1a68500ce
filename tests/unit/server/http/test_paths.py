"""The routes of paths with names."""

from __future__ import annotations

import pytest

from martlet.server.http.paths import names_in, route_of

CHANNEL = "/v1/topics/:topic/channels/:channel"


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/v1/topics/orders/messages", "/v1/topics/:topic/messages"),
        ("/v1/topics/a/channels/b/receive", f"{CHANNEL}/receive"),
        ("/v1/topics/a/channels/b/x/receive", f"{CHANNEL}/x/receive"),
        ("/v1/topics//messages", "/v1/topics//messages"),
        ("/v1/topics/a/channels//receive", "/v1/topics/:topic/channels//receive"),
        ("/v1/topics/", "/v1/topics/"),
        ("/v1/openapi.json", "/v1/openapi.json"),
        ("/V1/topics/a/messages", "/V1/topics/a/messages"),
        ("/pub", "/pub"),
    ],
)
def test_names_stand_for_themselves(path: str, route: str) -> None:
    assert route_of(path) == route


def test_the_names_are_those_in_the_path() -> None:
    assert names_in("/v1/topics/a/messages") == ["a"]
    assert names_in("/v1/topics/a/channels/b/receive") == ["a", "b"]
