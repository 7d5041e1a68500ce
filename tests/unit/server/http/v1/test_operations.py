"""The operations, the routes and the document are one."""

from __future__ import annotations

import json
import re

import pytest

from martlet.server.http.v1.operations import OPERATIONS, document
from martlet.testing import Broker


async def test_every_route_is_an_operation_and_no_other() -> None:
    async with Broker() as broker:
        routes = {
            path: list(methods)
            for path, methods in broker.server.routes().items()
            if path.startswith("/v1/")
        }
    assert routes == {path: [operation.method] for path, operation in OPERATIONS.items()}


def test_the_document_has_all_operations_once() -> None:
    text = json.dumps(document())
    assert len({operation.name for operation in OPERATIONS.values()}) == len(OPERATIONS)
    for path, operation in OPERATIONS.items():
        assert path.replace(":topic", "{topic}").replace(":channel", "{channel}") in text
        assert f'"operationId": "{operation.name}"' in text


@pytest.mark.parametrize(
    ("name", "is_published_to", "is_received_from"),
    [
        ("orders", True, True),
        # Replies to requests go there; a receive would end it.
        ("reply.0a#ephemeral", True, False),
        ("orders#other", False, False),
        ("n" * 65, False, False),
        ("n" * 60 + "#ephemeral", False, False),
    ],
)
def test_the_document_allows_the_names_that_the_routes_take(
    name: str, is_published_to: bool, is_received_from: bool
) -> None:
    channel = "/v1/topics/{topic}/channels/{channel}/receive"
    for path, allowed in (
        ("/v1/topics/{topic}/messages", is_published_to),
        (channel, is_received_from),
    ):
        schema = document()["paths"][path]["post"]["parameters"][0]["schema"]
        fits = re.search(schema["pattern"], name) is not None
        assert (fits and len(name) <= schema["maxLength"]) is allowed
