"""Handlers that processes run; so they are at the top of a module that can be imported."""

import os
import time
from pathlib import Path

from martlet.client import MessageView, Requeue


class Odd(Exception):
    """Cannot be made again from what pickle keeps of it."""

    def __init__(self, _one: int, _two: int) -> None:
        super().__init__("odd")


def obey(message: MessageView) -> object:
    """Do what the body says."""
    word, _, rest = message.body.decode().partition(" ")
    if word == "pid":
        Path(rest).write_text(str(os.getpid()))
    elif word == "odd":
        raise Odd(1, 2)
    elif word == "later":
        raise Requeue(77)
    elif word == "nap":
        time.sleep(0.1)
    elif word == "die":
        os._exit(3)
    elif word == "exit":
        raise SystemExit(3)
    elif word == "sleep":
        Path(rest).write_text(str(os.getpid()))
        time.sleep(600)
    return obey
