"""Guard the application's callbacks in the event loop: log their exceptions.

SystemExit and KeyboardInterrupt pass only in the main thread, where they end the program; in
another, such as that of ``martlet.client.sync``, they would end the event loop, and threads that
wait for it would wait for ever.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

logger = logging.getLogger("martlet.client")

P = ParamSpec("P")


def guarded(name: str, function: Callable[P, object]) -> Callable[P, None]:
    """Wrap a function so that its exceptions are logged with that name."""

    @wraps(function)
    def guard(*arguments: P.args, **named: P.kwargs) -> None:
        try:
            function(*arguments, **named)
        except BaseException as error:
            if isinstance(error, (SystemExit, KeyboardInterrupt)) and _is_main():
                raise
            logger.exception("%s failed", name)

    return guard


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()
