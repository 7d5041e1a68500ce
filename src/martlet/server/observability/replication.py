"""The replication of a broker, as other parts of the server see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from martlet.server.http.request import Routes


class Replication(Protocol):
    """The state of a broker's replicas."""

    is_sync: bool
    """Whether an OK waits for other replicas."""

    @property
    def lacks_replicas(self) -> bool:
        """Whether fewer replicas are in sync than an operator wants copies."""

    def report(self) -> dict[str, Any]:
        """Return all of it, for JSON."""

    def http_addresses(self) -> list[str]:
        """Return the HTTP addresses of all replicas, as far as they are known."""

    def metrics(self) -> str:
        """Return the lines for Prometheus."""

    def routes(self) -> Routes:
        """Return its endpoints."""
