"""The headers of a publish over HTTP, whose text is UTF-8.

``X-Martlet-Tag``, ``X-Martlet-Key`` (one for each key), ``X-Martlet-Order-Key`` and
``X-Martlet-Header: name=value`` (one for each header) are properties of the message, and so is
``X-Martlet-Priority``, 0 to 9. An order key and values that are no text are sent in base64, as
``X-Martlet-Order-Key-Base64`` and ``X-Martlet-Header-Base64: name=value``.

``X-Martlet-Deliver-At`` is the delivery time: in milliseconds since 1970, or in ISO 8601 with a
time zone.  As with SEND's ``deliver_at_ms`` a time in the past means now.  The answer is SEND's::

    POST /pub?topic=t    X-Martlet-Deliver-At: 2026-12-24T18:00:00+01:00
    {"status":"OK","queue":0,"offset":null,"count":1,"id":"00c0ffee00c0ffee"}
"""

from __future__ import annotations

import re
from binascii import a2b_base64
from datetime import datetime

from martlet.properties.model import (
    NORMAL_PRIORITY,
    BadProperties,
    Properties,
    TextOrBytes,
    check_priority,
)
from martlet.server.http.request import HttpError, Request
from martlet.server.rpc.registry import CallArguments, CallError, deliver_at_ns

_TAG, _KEY, _ORDER_KEY, _HEADER, _PRIORITY = (
    f"X-Martlet-{name}" for name in ("Tag", "Key", "Order-Key", "Header", "Priority")
)
_ORDER_KEY_BASE64, _HEADER_BASE64 = f"{_ORDER_KEY}-Base64", f"{_HEADER}-Base64"
_DELIVER_AT = "X-Martlet-Deliver-At"
_KNOWN = (
    *(_TAG, _KEY, _ORDER_KEY, _ORDER_KEY_BASE64, _HEADER, _HEADER_BASE64, _PRIORITY),
    _DELIVER_AT,
)
_KNOWN_LOWER = frozenset(name.lower() for name in _KNOWN)
_DIGITS = re.compile(r"[0-9]{1,9}")
_MILLISECONDS = re.compile(r"[0-9]{1,18}")


def properties_in(request: Request) -> Properties:
    """Return the properties that a request gives its message, valid for packing. Raises HttpError:
    400 UNKNOWN_HEADER or INVALID_PROPERTIES, and the reason.
    """
    for name in request.header_names:
        if name.lower().startswith("x-martlet-") and name.lower() not in _KNOWN_LOWER:
            raise HttpError(
                400, f"UNKNOWN_HEADER: {name[:40]!r}; the known ones are {', '.join(_KNOWN)}"
            )
    tags, keys = request.headers(_TAG), request.headers(_KEY)
    priorities, headers = request.headers(_PRIORITY), _headers_in(request)
    order_keys: list[TextOrBytes] = [*request.headers(_ORDER_KEY)]
    order_keys += map(_decoded, request.headers(_ORDER_KEY_BASE64))
    if not (tags or keys or order_keys or headers or priorities):
        return Properties()
    if len(tags) > 1 or len(order_keys) > 1 or len(priorities) > 1:
        raise HttpError(
            400, "INVALID_PROPERTIES: a message has one tag, one order key and one priority at most"
        )
    text = "".join(priorities).strip() or str(NORMAL_PRIORITY)
    try:
        priority = check_priority(int(text) if _DIGITS.fullmatch(text) else text)
        order_key = order_keys[0] if order_keys else ""
        properties = Properties("".join(tags), tuple(keys), headers, order_key, priority=priority)
        properties.pack()
    except BadProperties as error:
        raise HttpError(400, f"INVALID_PROPERTIES: {error}") from None
    return properties


def _headers_in(request: Request) -> dict[str, TextOrBytes]:
    headers: dict[str, TextOrBytes] = {}
    for http_header in (_HEADER, _HEADER_BASE64):
        for text in request.headers(http_header):
            name, equals, value = text.partition("=")
            if not equals or name in headers:
                raise HttpError(
                    400, f"INVALID_PROPERTIES: {http_header} must be name=value, each name once"
                )
            headers[name] = value if http_header == _HEADER else _decoded(value)
    return headers


def _decoded(text: str) -> bytes:
    try:
        return a2b_base64(text, strict_mode=True)
    except ValueError as error:
        raise HttpError(400, f"INVALID_PROPERTIES: {text[:40]!r} is no base64: {error}") from None


def delivery_time_in(request: Request, now_ns: int, max_delay_ns: int) -> int | None:
    """Return the requested delivery time: 0 for now, None without a header. Raises HttpError: 400
    INVALID_DELIVER_AT and the reason.
    """
    times = request.headers(_DELIVER_AT)
    if not times:
        return None
    if len(times) > 1 or "defer" in request.query:
        raise _invalid(f"say when once: one {_DELIVER_AT}, and no defer beside it")
    arguments = CallArguments({"deliver_at_ms": _milliseconds(times[0])})
    try:
        return deliver_at_ns(arguments, now_ns, max_delay_ns)
    except CallError as error:
        raise _invalid(str(error).replace("'deliver_at_ms'", _DELIVER_AT)) from None


def _milliseconds(text: str) -> int:
    text = text.strip()
    if _MILLISECONDS.fullmatch(text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise _invalid(
            f"{text[:40]!r} is no time; write milliseconds since 1970, or 2026-01-31T12:00:00+01:00"
        ) from None
    if moment.tzinfo is None:
        raise _invalid(f"{text[:40]!r} has no time zone; add Z, or one as +01:00")
    return max(0, round(moment.timestamp() * 1000))


def _invalid(why: str) -> HttpError:
    return HttpError(400, f"INVALID_DELIVER_AT: {why}")
