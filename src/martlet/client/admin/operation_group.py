"""The base of the groups of methods of `Admin`, and checks of their arguments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from martlet.client.admin.http import AdminHttp
from martlet.client.names import check_name
from martlet.names import ID_RULE, is_message_id

T = TypeVar("T")


class OperationGroup:
    """Methods of `Admin` about one kind of thing.

    Args:
        http: queries the brokers.
    """

    def __init__(self, http: AdminHttp) -> None:
        self._http = http


class BlockingOperationGroup(ABC):
    """The same, with methods that block."""

    _http: AdminHttp

    @abstractmethod
    def _waited(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Wait for a coroutine of the asyncio client, which `ask` makes."""

    @abstractmethod
    def _iterated(self, items: AsyncGenerator[T]) -> Iterator[T]:
        """Iterate over items of the asyncio client."""


def target(topic: str, channel: str | None = None) -> dict[str, str]:
    """Return the names of a topic or a channel as arguments. Raises InvalidName."""
    names = {"topic": topic} | ({} if channel is None else {"channel": channel})
    for kind, name in names.items():
        check_name(name, kind)
    return names


def id_text(message_id: str | bytes) -> str:
    """Return the id of a message as text; those of the client's messages are bytes.

    Raises ValueError: it is no id.
    """
    text = message_id.decode("ascii", "replace") if isinstance(message_id, bytes) else message_id
    if not is_message_id(text):
        raise ValueError(f"{ID_RULE}: {text[:80]!r}")
    return text
