"""The OpenAPI document of the HTTP API, made from `operations`."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from martlet import __version__
from martlet.names import MAX_NAME_LENGTH
from martlet.server.http.v1.guard import HEADER
from martlet.server.http.v1.operations import OPERATIONS, HttpOperation

_NAME = {"type": "string", "pattern": "^[.a-zA-Z0-9_-]+$", "maxLength": MAX_NAME_LENGTH}
# An #ephemeral topic takes messages, as replies to requests; a receive from it is refused.
_PUBLISHED = _NAME | {"pattern": "^[.a-zA-Z0-9_-]+(#ephemeral)?$"}
_ERROR = {
    "type": "object",
    "properties": {"message": {"type": "string"}},
    "required": ["message"],
}
_OF_ALL = {
    401: "the broker wants a secret: see --auth-http-address",
    403: "the secret does not allow it, or a web page of another site asks",
}


@cache
def document() -> dict[str, Any]:
    """Return the document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Martlet: messages over HTTP",
            "version": __version__,
            "description": "Publish, receive and acknowledge messages without an NSQ client.",
        },
        "components": {"securitySchemes": {"secret": _security()}},
        "paths": {
            re.sub(r":(\w+)", r"{\1}", path): {each.method.lower(): _described(path, each)}
            for path, each in OPERATIONS.items()
        },
    }


def _security() -> dict[str, str]:
    text = "the secret of AUTH, where the broker has --auth-http-address"
    return {"type": "apiKey", "in": "header", "name": HEADER, "description": text}


def _described(path: str, operation: HttpOperation) -> dict[str, Any]:
    names = re.findall(r":(\w+)", path)
    name_schema = _NAME if "channel" in names else _PUBLISHED
    shown: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "security": [{}, {"secret": []}] if names else [{}],
        "parameters": [
            *(
                {"name": name, "in": "path", "required": True, "schema": name_schema}
                for name in names
            ),
            *(
                {"name": name, "in": "query", "schema": schema}
                for name, schema in operation.query.items()
            ),
        ],
    }
    if operation.bodies:
        content = {kind: {"schema": schema} for kind, schema in operation.bodies.items()}
        shown["requestBody"] = {"required": True, "content": content}
    refusals = operation.refusals | (_OF_ALL if names else {})
    shown["responses"] = {
        "200": _response("done", operation.answer),
        **{
            # A request that acknowledged nothing is answered like any other.
            str(status): _response(text, _either(operation) if status == 409 else _ERROR)
            for status, text in sorted(refusals.items())
        },
    }
    return shown


def _either(operation: HttpOperation) -> dict[str, Any]:
    return {"anyOf": [operation.answer, _ERROR]}


def _response(text: str, schema: object) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}
