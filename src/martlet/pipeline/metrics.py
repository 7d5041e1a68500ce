"""The metrics of a job for Prometheus: batches, rows, durations, and lag."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from martlet.addresses import Address

_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120, 300)


class Meter:
    """The metrics of one job; a job can add its own to `registry`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._rows = Counter(
            "martlet_pipeline_rows", "messages or rows that were done", registry=self.registry
        )
        self._batches = Histogram(
            "martlet_pipeline_batch_seconds",
            "how long a batch took",
            registry=self.registry,
            buckets=_BUCKETS_S,
        )
        self._last = Gauge(
            "martlet_pipeline_last_batch_timestamp_seconds",
            "when the last batch was done, in seconds since 1970",
            registry=self.registry,
        )
        self._lag = Gauge(
            "martlet_pipeline_lag",
            "messages stored and not read yet, as of the last batch",
            registry=self.registry,
        )

    @classmethod
    @contextmanager
    def serving(cls, address: str) -> Iterator[Meter]:
        """Serve a new meter at ``http://address/metrics``; an empty address serves nothing.

        Raises:
            OSError: the address cannot be bound.
        """
        meter = cls()
        if not address:
            yield meter
            return
        parsed = Address.parse(address)
        try:
            server, thread = start_http_server(parsed.port, parsed.host, meter.registry)
        except OSError as error:
            why = error.strerror or error
            raise OSError(f"--metrics-address={address} cannot be bound: {why}") from None
        try:
            yield meter
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def batch(self, rows: int, seconds: float, *, lag: int | None = None) -> None:
        """Count a completed batch."""
        self._rows.inc(rows)
        self._batches.observe(seconds)
        self._last.set_to_current_time()
        if lag is not None:
            self._lag.set(lag)
