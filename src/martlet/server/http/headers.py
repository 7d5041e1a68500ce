"""Properties of a message that is published by HTTP.

A publish names them in headers: ``X-Martlet-Tag``, ``X-Martlet-Key`` (one for each key),
``X-Martlet-Order-Key`` and ``X-Martlet-Header: name=value`` (one for each header).  Their text is
UTF-8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from martlet.properties.model import BadProperties, Properties
from martlet.server.http.request import HttpError

if TYPE_CHECKING:
    from martlet.server.http.request import Request

_TAG, _KEY, _ORDER_KEY, _HEADER = (
    f"X-Martlet-{name}" for name in ("Tag", "Key", "Order-Key", "Header")
)


def asked_properties(request: Request) -> Properties:
    """What a publish says of its message's properties, which can be packed.

    Raises:
        HttpError: 400 INVALID_PROPERTIES and why.
    """
    tags, order_keys = request.headers(_TAG), request.headers(_ORDER_KEY)
    keys, headers = request.headers(_KEY), request.headers(_HEADER)
    if not (tags or keys or order_keys or headers):
        return Properties()
    if len(tags) > 1 or len(order_keys) > 1:
        raise HttpError(400, "INVALID_PROPERTIES: a message has one tag and one order key at most")
    named: dict[str, str] = {}
    for header in headers:
        name, equals, value = header.partition("=")
        if not equals or name in named:
            raise HttpError(
                400, f"INVALID_PROPERTIES: {_HEADER} must be name=value, each name once"
            )
        named[name] = value
    properties = Properties("".join(tags), tuple(keys), named, "".join(order_keys))
    try:
        properties.pack()
    except BadProperties as error:
        raise HttpError(400, f"INVALID_PROPERTIES: {error}") from None
    return properties
