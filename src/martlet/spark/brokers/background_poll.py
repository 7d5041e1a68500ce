"""A watch: something that is asked again and again, what it said last, and since when it is silent.

Several are asked at once, each in a thread of its own, so that one which does not answer keeps
nobody waiting: what it is asked goes on behind, and counts when it has come.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from typing import Generic, TypeVar

from martlet.spark.brokers.endpoint import BrokerUnreachable, Endpoint

T = TypeVar("T")
_CLOSE_S = 1.0


class BackgroundPoll(Generic[T]):
    """One of those that are asked.

    Args:
        endpoint: where; nobody else uses it.
        ask: asks it; told whether to be patient. Raises BrokerUnreachable.

    Attributes:
        told: what it said last; None where it was never heard.
        silent_since_s: the time, of `time.monotonic`, since when it does not answer; None where it
            does.
        trouble: why it does not.
    """

    def __init__(self, endpoint: Endpoint, ask: Callable[[Endpoint, bool], T]) -> None:
        self.endpoint = endpoint
        self.latest: T | None = None
        self.silent_since_s: float | None = None
        self.trouble = ""
        self._ask = ask
        self._lock = threading.Lock()
        self._asked: Future[T] | None = None
        self._is_patient = False

    def begin(self, pool: ThreadPoolExecutor, *, patient: bool) -> None:
        """Ask, unless that is under way; a patient one waits as long as the endpoint does."""
        if self._asked is None or (patient and not self._is_patient):
            self.endpoint.is_given_up = False
            self._asked = pool.submit(self._locked, patient)
            self._is_patient = patient

    def _locked(self, patient: bool) -> T:
        with self._lock:
            return self._ask(self.endpoint, patient)

    def end(self, wait_s: float | None) -> None:
        """Take what it says, if it does within a time. Raises what `ask` raises otherwise."""
        assert self._asked is not None
        try:
            self.latest = self._asked.result(wait_s)
        except NotYet:
            self._silent("it has not answered yet")
            return
        except BrokerUnreachable as error:
            self._silent(str(error))
            if self._is_patient:
                self._asked = None
                raise
        except BaseException:
            self._asked = None
            raise
        else:
            self.silent_since_s = None
        self._asked = None

    def close(self) -> None:
        """Close the connection, unless it is needed for so long that nobody can wait for that; what
        is under way is not tried again, since a process does not end before its threads.
        """
        self.endpoint.is_given_up = True
        if self._lock.acquire(timeout=_CLOSE_S):
            self.endpoint.close()
            self._lock.release()
        self._asked = None

    def _silent(self, trouble: str) -> None:
        self.trouble = trouble
        if self.silent_since_s is None:
            self.silent_since_s = time.monotonic()
