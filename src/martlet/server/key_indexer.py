"""The indexer: builds the indexes of keys of full segments, in a thread.

The log says when a segment is full and whether messages in it have properties; where none has any,
nothing is done. Such a segment gets an index only once there is one, or once a search has asked: an
empty one, so that it is not read again. A search also names the segments that it had to read since
their index was missing, damaged or of another version. So a start looks for nothing, and an index
that a crash has cost is built when it is missed.

The thread reads pieces of a few MiB and works on them with numpy, which both let the event loop run
meanwhile. Replicas have an indexer each, whatever their role.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from martlet.log.keys.index_file import DamagedSegment, NotIndexed, build_index
from martlet.log.storage import INDEX_SUFFIX, DiskStorage


class KeyIndexer:
    """Builds indexes, one at a time, of the newest segments first."""

    def __init__(self, storage: DiskStorage, log: logging.Logger) -> None:
        self._storage = storage
        self._log = log
        self._lock = threading.Lock()
        self._pending: set[Path] = set()
        self._damaged: set[Path] = set()
        """Segments that get no index."""
        self._is_used = any((storage.folder / "log").glob(f"*{INDEX_SUFFIX}"))
        """Whether a segment without keys gets an index, too."""
        self._is_closed = False
        self._is_working = False
        self._thread = ThreadPoolExecutor(1, "martlet-keys")
        storage.on_sealed = self._sealed

    def _sealed(self, segment: Path, has_properties: bool) -> None:
        if has_properties or self._is_used:
            self._begin([segment])

    def missed(self, segments: Iterable[Path]) -> None:
        """Build the indexes that a search has missed."""
        missing = [segment for segment in segments if segment not in self._damaged]
        if missing:
            self._is_used = True
            self._begin(missing)

    def _begin(self, segments: list[Path]) -> None:
        with self._lock:
            self._pending.update(segments)
            if not self._is_working and not self._is_closed:
                self._is_working = True
                self._thread.submit(self._work)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._pending or self._is_closed:
                    self._is_working = False
                    return
                segment = max(self._pending)
                self._pending.remove(segment)
            try:
                self._build(segment)
            except Exception:
                self._log.exception("LOG: the keys of %s could not be indexed", segment)

    def _build(self, segment: Path) -> None:
        try:
            count = build_index(
                segment,
                keeps_empty=self._is_used,
                check_room=partial(self._storage.check_room, thing="an index of keys"),
                is_over=lambda: self._is_closed,
            )
        except FileNotFoundError:
            return  # Retired meanwhile.
        except NotIndexed as error:
            if isinstance(error, DamagedSegment):
                self._damaged.add(segment)
            self._log.info("LOG: the keys of %s are not indexed: %s", segment.name, error)
        except OSError as error:
            self._log.warning(
                "LOG: the keys of %s are not indexed, so each search by key reads it: %s",
                segment.name,
                error,
            )
        else:
            self._is_used = self._is_used or bool(count)
            self._log.debug("LOG: indexed %d keys of %s", count, segment.name)

    def close(self) -> None:
        """Stop; an index that is being built is given up."""
        self._is_closed = True
        self._thread.shutdown()
