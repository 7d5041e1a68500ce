"""The operations of the HTTP API, as the OpenAPI document describes them.

A path here is one of `martlet.server.http.v1.api.HttpApi.routes`. What stands in a schema is what
the handlers check.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from martlet import __version__
from martlet.names import ID_PATTERN, MAX_NAME_LENGTH, PutStatus
from martlet.server.http.v1.guard import HEADER
from martlet.server.http.v1.leases import MAX_CHARACTERS
from martlet.server.http.v1.messages import FIELDS, JSON, MAX_MESSAGES, NDJSON

Schema = Mapping[str, Any]

MAX_RECEIVED = 1000
"""The maximum number of messages in one answer."""
MAX_WAIT_S = 60
MIN_VISIBILITY_S = 0.1
MAX_RECEIPTS = 1000
MAX_ERROR = 1000
"""The maximum number of characters of an error text."""
_TEXT: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "integer", "minimum": 0}
_ID: Schema = {"type": "string", "pattern": f"^{ID_PATTERN}$"}
_PLACE: Mapping[str, Schema] = {
    "queue": _NUMBER,
    "offset": {
        "type": ["integer", "null"],
        "description": "null for a message that waits for its time",
    },
    "id": _ID,
}
_STATUS: Schema = {"type": "string", "enum": [status.value for status in PutStatus]}
_SHOWN = tuple(name for name in FIELDS if name not in ("queue", "deliver_at_ms", "defer_ms"))
_RECEIPTS: Schema = {
    "type": "array",
    "items": _TEXT,
    "minItems": 1,
    "maxItems": MAX_RECEIPTS,
    "description": "of received messages",
}
_REASON: Schema = {
    "type": "string",
    "maxLength": MAX_ERROR,
    "description": "why the message failed, for the dead letter",
}
_SECONDS: dict[str, Any] = {"type": "number", "minimum": 0}
VISIBILITY: dict[str, Any] = {
    "type": "number",
    "minimum": MIN_VISIBILITY_S,
    "description": "seconds until a message that is not acknowledged is delivered again; the"
    " maximum is --max-msg-timeout",
}
_REFUSED = {
    400: "a wrong argument or body",
    503: "the broker takes no writes, or a limit is reached",
}
_BODY = {413: "the body is too large", 415: "the body has another media type"}
_MISSING = {404: "there is no such topic or channel"}
_NONE_DONE = {409: "no receipt was acknowledged: the results say why"}
_CHANNEL = "/v1/topics/:topic/channels/:channel"
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


@dataclass(frozen=True)
class HttpOperation:
    """An operation."""

    name: str
    """The operation's id."""
    summary: str
    answer: Schema
    """The schema of the answer."""
    query: Mapping[str, Schema] = field(default_factory=dict)
    """The schema of each argument in the query."""
    bodies: Mapping[str, Schema] = field(default_factory=dict)
    """The schema of the body, by media type."""
    refusals: dict[int, str] = field(default_factory=dict)
    """The meaning of each other status."""
    method: str = "POST"


def _object(fields: Mapping[str, Any], *required: str, **more: Any) -> Schema:
    return {
        "type": "object",
        "properties": dict(fields),
        "required": list(required),
        "additionalProperties": False,
        **more,
    }


_MESSAGE = _object(FIELDS, oneOf=[{"required": ["body"]}, {"required": ["body_base64"]}])
_STORED: Schema = {
    "oneOf": [
        _object(
            {"status": _STATUS, **_PLACE, "count": {"const": 1}},
            *("status", "queue", "offset", "id", "count"),
        ),
        _object(
            {
                "status": _STATUS,
                "count": _NUMBER,
                "messages": {
                    "type": "array",
                    "items": _object(_PLACE, "queue", "offset", "id"),
                },
            },
            *("status", "count", "messages"),
        ),
    ]
}
_RECEIVED = _object(
    {
        "messages": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    **{name: {"type": FIELDS[name]["type"]} for name in _SHOWN},
                    "id": _ID,
                    "receipt": {
                        "type": "string",
                        "maxLength": MAX_CHARACTERS,
                        "description": "acknowledges this delivery",
                    },
                    "attempts": {"type": "integer", "minimum": 1},
                    "timestamp_ms": {
                        "type": "integer",
                        "description": "when it was stored, in milliseconds since 1970",
                    },
                    "queue": _NUMBER,
                    "offset": _NUMBER,
                    "system": {"type": "object", "description": "notes of the broker"},
                },
                "required": ["id", "receipt", "attempts", "timestamp_ms", "queue", "offset"],
            },
        }
    },
    "messages",
)
_RESULTS = _object(
    {
        "results": {
            "type": "array",
            "items": _object(
                {
                    "receipt": _TEXT,
                    "status": {"type": "string", "enum": ["OK", "BAD_RECEIPT", "NOT_IN_FLIGHT"]},
                    "text": {"type": "string", "description": "why it was refused"},
                    "lease_ends_ms": {
                        "type": "integer",
                        "description": "of a touch: when the lease ends now, since 1970",
                    },
                },
                "receipt",
                "status",
            ),
        }
    },
    "results",
)


def _acknowledgement(name: str, summary: str, **fields: Schema) -> HttpOperation:
    return HttpOperation(
        name,
        summary,
        _RESULTS,
        bodies={JSON: _object({"receipts": _RECEIPTS, **fields}, "receipts")},
        refusals=_REFUSED | _BODY | _MISSING | _NONE_DONE,
    )


OPERATIONS: Mapping[str, HttpOperation] = {
    "/v1/topics/:topic/messages": HttpOperation(
        "publish",
        f"Publish one message, or up to {MAX_MESSAGES} as NDJSON, one on each line",
        _STORED,
        query={
            "wait": {
                "type": "boolean",
                "default": True,
                "description": "false: answer once they are written, whatever --flush says",
            }
        },
        bodies={JSON: _MESSAGE, NDJSON: _MESSAGE},
        refusals=_REFUSED | _BODY,
    ),
    f"{_CHANNEL}/receive": HttpOperation(
        "receive",
        "Receive messages; the topic and the channel are made where missing",
        _RECEIVED,
        query={
            "max": {"type": "integer", "minimum": 1, "maximum": MAX_RECEIVED, "default": 1},
            "wait": {
                "type": "number",
                "minimum": 0,
                "maximum": MAX_WAIT_S,
                "default": 0,
                "description": "seconds to wait for a message, if there is none",
            },
            "visibility": VISIBILITY
            | {"description": f"{VISIBILITY['description']}; by default --msg-timeout"},
        },
        refusals=_REFUSED | {404: "the channel was deleted meanwhile", 409: "it is a group"},
    ),
    f"{_CHANNEL}/finish": _acknowledgement("finish", "Finish messages"),
    f"{_CHANNEL}/requeue": _acknowledgement(
        "requeue",
        "Have messages delivered again; they have failed",
        delay=_SECONDS | {"default": 0, "description": "seconds; the maximum is --max-req-timeout"},
        error=_REASON,
    ),
    f"{_CHANNEL}/touch": _acknowledgement(
        "touch", "Begin the leases of messages again", visibility=VISIBILITY
    ),
    f"{_CHANNEL}/reject": _acknowledgement(
        "reject", "Move messages to the channel's dead-letter topic", error=_REASON
    ),
    "/v1/openapi.json": HttpOperation(
        "describe", "This document", {"type": "object"}, method="GET"
    ),
}
"""Every operation, by its path."""


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
            re.sub(r":(\w+)", r"{\1}", path): {op.method.lower(): _described(path, op)}
            for path, op in OPERATIONS.items()
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
