"""The TCP listeners of brokers that are named by their HTTP addresses.

``--address`` is one name for a broker in all commands: the address of its HTTP listener. A tool
that consumes or publishes asks there for the port of the NSQ protocol, as nsqd and Martlet tell it.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterable
from urllib.parse import urlsplit

from martlet.client.errors import ClientError

_TIMEOUT_S = 5.0
_MAX_ANSWER_BYTES = 1 << 16


def tcp_addresses(http_addresses: Iterable[str]) -> tuple[str, ...]:
    """Ask brokers for the addresses of their TCP listeners.

    Args:
        http_addresses: of their HTTP listeners, as ``host:4151`` or URLs.

    Raises:
        ClientError: a broker does not answer, or what answers is no broker.
    """
    return tuple(map(_tcp_address, http_addresses))


def _tcp_address(address: str) -> str:
    url = address if "://" in address else f"http://{address}"
    # A proxy of the environment is for other hosts than brokers.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url.rstrip('/')}/info", timeout=_TIMEOUT_S) as answer:
            port = json.loads(answer.read(_MAX_ANSWER_BYTES))["tcp_port"]
            if type(port) is not int or not 0 < port < 1 << 16:
                raise ValueError(f"its TCP port is {port!r}")
    except urllib.error.URLError as error:
        reason = error.reason if isinstance(error.reason, str) else str(error.reason)
        raise ClientError(f"--address={address}: {reason}") from None
    except (
        *(OSError, http.client.HTTPException),
        *(ValueError, KeyError, TypeError, RecursionError),
    ) as error:
        raise ClientError(
            f"--address={address} is not the HTTP address of a broker, such as 127.0.0.1:4151"
            f" ({str(error) or type(error).__name__}); --nsqd-tcp-address takes that of its NSQ"
            " protocol"
        ) from None
    host = urlsplit(url).hostname or ""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
