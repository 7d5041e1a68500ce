"""The operations, the routes and the document are one."""

from __future__ import annotations

import json

from martlet.server.http.v1.openapi import document
from martlet.server.http.v1.operations import OPERATIONS
from martlet.testing import Broker


async def test_every_route_is_an_operation_and_no_other() -> None:
    async with Broker() as broker:
        routes = {
            path: list(methods)
            for path, methods in broker.server.routes().items()
            if path.startswith("/v1/")
        }
    assert routes == {path: [each.method] for path, each in OPERATIONS.items()}


def test_the_document_has_all_operations_once() -> None:
    text = json.dumps(document())
    assert len({each.name for each in OPERATIONS.values()}) == len(OPERATIONS)
    for path, operation in OPERATIONS.items():
        assert path.replace(":topic", "{topic}").replace(":channel", "{channel}") in text
        assert f'"operationId": "{operation.name}"' in text
