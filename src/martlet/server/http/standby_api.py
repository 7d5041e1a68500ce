"""The HTTP endpoints of a standby: those for readers of the log, which it answers from its copy.

It tells what is confirmed and taken in, so it may lag behind the primary but never takes back what
it has told. Where that is not certain, it answers 503, and the reader asks another replica.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from martlet.server.http.log_api import LogApi
from martlet.server.http.request import HttpError

if TYPE_CHECKING:
    from martlet.broker.queue.stored_queue import LogView
    from martlet.broker.recovery.restore import BrokerRecovery
    from martlet.log.copy import CopiedLog
    from martlet.server.data_folder import DataFolder
    from martlet.server.http.request import Routes


class CopiedState(NamedTuple):
    """The state of a standby.

    Attributes:
        copy: its log.
        recovery: the state of the broker, where that was built.
        confirmed_position: every record before it is confirmed.
    """

    copy: CopiedLog
    recovery: BrokerRecovery | None
    confirmed_position: int


def standby_routes(
    folder: DataFolder,
    current: Callable[[], CopiedState | None],
    replicas: Callable[[], list[str]],
) -> Routes:
    """Return the endpoints of a standby.

    Args:
        folder: holds its log.
        current: returns its state at this moment; None while this replica is no standby.
        replicas: returns the HTTP addresses of all replicas that are known.
    """
    return LogApi(lambda: _view(current()), folder, replicas, is_standby=True).routes()


def _view(state: CopiedState | None) -> LogView:
    """Return what readers may see of a state. Raises HttpError."""
    if state is None:
        raise HttpError(503, "NO_STANDBY: this replica is about to be the primary, or stops")
    copy, recovery, confirmed_position = state
    if recovery is None or not recovery.is_usable_for(copy):
        raise HttpError(503, "NOT_READY: this standby has not read its log yet")
    if not recovery.is_confirmed(confirmed_position):
        raise HttpError(503, "NOT_CONFIRMED: it is not known yet whether this log is confirmed")
    return recovery
