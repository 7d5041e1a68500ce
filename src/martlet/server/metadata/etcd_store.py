"""The metadata store in etcd 3.4 or later, over its JSON gateway.

::

    /martlet/<set>/state            the document; its version is the key's mod_revision
    /martlet/<set>/replica/<name>   a presence, with a lease of 3 s

Reads are linearizable, which is etcd's default. All calls are POST; keys and values are base64, and
64-bit numbers strings (https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway/).
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any

import aiohttp

from martlet import unreachable
from martlet.replica.replica_set import Presence, ReplicaSet, Seen
from martlet.server.metadata.store import PRESENCE_S, StoreUnreachable, SwapUnclear, readable

_ROOT = "/martlet/"
_TIMEOUT_S = 1.0
"""How long one member of etcd is waited for, in seconds."""


class EtcdStore:
    """A metadata store in etcd: `martlet.server.metadata.store.MetadataStore`.

    Args:
        endpoints: ``HOST:PORT`` of its members, tried in turn.
    """

    def __init__(self, endpoints: Sequence[str], name: str) -> None:
        assert endpoints
        self._endpoints = list(endpoints)
        self._prefix = f"{_ROOT}{name}/"
        self._state_key = _text(f"{self._prefix}state")
        self._session: aiohttp.ClientSession | None = None
        self._lease: str | None = None

    async def read(self) -> Seen:
        """As `MetadataStore.read`."""
        # The first key behind the prefix: its last byte, "/", raised by 1.
        answer = await self._ask(
            "kv/range", {"key": _text(self._prefix), "range_end": _text(self._prefix[:-1] + "0")}
        )
        replica_set, version = None, 0
        presences: list[tuple[str, bytes]] = []
        for pair in answer.get("kvs", []):
            value = b64decode(pair.get("value", ""))  # An empty one is left out.
            if pair["key"] == self._state_key:
                replica_set = ReplicaSet.unpack(value)
                version = int(pair["mod_revision"])
            else:
                name = b64decode(pair["key"]).decode(errors="replace").rpartition("/")[2]
                presences.append((name, value))
        return Seen(replica_set, version, readable(presences))

    async def swap(self, replica_set: ReplicaSet, version: int) -> int | None:
        """As `MetadataStore.swap`. A version that is 0 compares as "there is no such key"."""
        key = self._state_key
        put = {"request_put": {"key": key, "value": b64encode(replica_set.pack()).decode()}}
        compare = {"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": str(version)}
        try:
            answer = await self._ask("kv/txn", {"compare": [compare], "success": [put]})
        except StoreUnreachable as error:
            raise SwapUnclear(str(error)) from error
        # A comparison that failed has no such field.
        return int(answer["header"]["revision"]) if answer.get("succeeded") else None

    async def announce(self, name: str, presence: Presence) -> None:
        """As `MetadataStore.announce`."""
        if self._lease is not None:
            answer = await self._ask("lease/keepalive", {"ID": self._lease})
            if not int(answer.get("result", {}).get("TTL", 0)):
                self._lease = None  # It has expired.
        if self._lease is None:
            answer = await self._ask("lease/grant", {"TTL": PRESENCE_S})
            self._lease = str(answer["ID"])
        value = b64encode(presence.pack()).decode()
        key = _text(f"{self._prefix}replica/{name}")
        try:
            await self._ask("kv/put", {"key": key, "value": value, "lease": self._lease})
        except StoreUnreachable:
            self._lease = None
            raise

    async def names(self) -> list[str]:
        """As `MetadataStore.names`."""
        question = {
            "key": _text(_ROOT),
            "range_end": _text(_ROOT[:-1] + "0"),
            "keys_only": True,
        }
        answer = await self._ask("kv/range", question)
        keys = [b64decode(pair["key"]).decode(errors="replace") for pair in answer.get("kvs", [])]
        return [key[len(_ROOT) : -len("/state")] for key in keys if key.endswith("/state")]

    async def close(self) -> None:
        """As `MetadataStore.close`."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _ask(self, path: str, question: dict[str, Any]) -> dict[str, Any]:
        """Ask the members of etcd in turn. Raises StoreUnreachable."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
            self._session = aiohttp.ClientSession(timeout=timeout)
        reasons = []
        for endpoint in list(self._endpoints):
            try:
                async with self._session.post(
                    f"http://{endpoint}/v3/{path}", json=question, allow_redirects=False
                ) as response:
                    answer: object = await response.json(content_type=None)
                    fields = answer if isinstance(answer, dict) else {}
                    # A proxy answers with an empty body, or with anything else.
                    is_etcds = "header" in fields or "header" in (fields.get("result") or ())
                    if response.status == 200 and is_etcds:
                        return fields
                    said = fields.get("error")
                    reasons.append(f"{endpoint}: {said or f'status {response.status}'}")
            except TimeoutError:
                reasons.append(f"{endpoint}: no answer within {_TIMEOUT_S:g} s")
            except OSError as error:
                reasons.append(f"{endpoint}: {unreachable.reason(error, 'member of etcd')}")
            except (aiohttp.ClientError, ValueError) as error:
                reasons.append(f"{endpoint}: {str(error) or type(error).__name__}")
            # The next call begins with another member.
            self._endpoints.append(self._endpoints.pop(0))
        raise StoreUnreachable(f"etcd did not answer ({'; '.join(reasons)})")


def _text(text: str) -> str:
    return b64encode(text.encode()).decode()
