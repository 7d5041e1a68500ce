"""The routes of paths with names in them, as ``/v1/topics/orders/messages``.

A route is written with a colon before what stands for any one name::

    /v1/topics/:topic/messages
    /v1/topics/:topic/channels/:channel/receive
    /config/:name
"""

from __future__ import annotations

V1 = "/v1/topics/"


def route_of(path: str) -> str:
    """Return the route below `V1` of a decoded path; any other path as it is."""
    if not path.startswith(V1):
        return path
    parts = path.split("/")
    if parts[3]:
        parts[3] = ":topic"
    if len(parts) > 5 and parts[4] == "channels" and parts[5]:
        parts[5] = ":channel"
    return "/".join(parts)


def names_in(path: str) -> list[str]:
    """Return the topic and, if there is one, the channel in a path below `V1`."""
    parts = path.split("/")
    return [parts[3], *parts[5:6]] if len(parts) > 6 else [parts[3]]
