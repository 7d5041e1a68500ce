"""What a job has done, counted for Prometheus: batches, rows, seconds, and how far behind it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from martlet.addresses import Address

_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120, 300)


class Meter:
    """The metrics of one job. Each job may add its own to `registry`."""

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
        """A meter that is to be read at ``http://address/metrics``; an empty address: nowhere.

        Raises:
            OSError: the address is not to be had.
        """
        meter = cls()
        if not address:
            yield meter
            return
        place = Address.parse(address)
        try:
            server, thread = start_http_server(place.port, place.host, meter.registry)
        except OSError as error:
            why = error.strerror or error
            raise OSError(f"--metrics-address={address} is not to be had: {why}") from None
        try:
            yield meter
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def batch(self, rows: int, seconds: float, *, lag: int | None = None) -> None:
        """Count a batch that is done."""
        self._rows.inc(rows)
        self._batches.observe(seconds)
        self._last.set_to_current_time()
        if lag is not None:
            self._lag.set(lag)
