"""The answers of several brokers: a value or an error of each."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, Self, TypeVar

from martlet.client.admin.errors import AdminError, AdminNotFound

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")
KeyT = TypeVar("KeyT", bound=Hashable)


class _Addable(Protocol):
    def __add__(self, other: Any, /) -> Any: ...


SumT = TypeVar("SumT", bound=_Addable)


@dataclass(frozen=True)
class Answers(Generic[T_co]):
    """The answers of brokers, by their URLs.

    Attributes:
        values: of the brokers that answered; at least one, unless the list of brokers is empty.
        errors: of the others. A broker that lacks the topic, channel, group or transaction has an
            `AdminNotFound`.
    """

    values: Mapping[str, T_co]
    errors: Mapping[str, AdminError] = field(default_factory=dict)

    @property
    def failures(self) -> Mapping[str, AdminError]:
        """The errors other than `AdminNotFound`: of brokers that may have an answer."""
        return {url: e for url, e in self.errors.items() if not isinstance(e, AdminNotFound)}

    def check(self) -> Self:
        """Return itself. Raises the first of the failures (AdminError), if there is any."""
        for error in self.failures.values():
            raise error
        return self

    def map(self, convert: Callable[[T_co], U]) -> Answers[U]:
        """Return converted values, with the same errors."""
        return Answers({url: convert(value) for url, value in self.values.items()}, self.errors)

    def total(self, count: Callable[[T_co], int]) -> int:
        """Return the sum of a count over the brokers that answered."""
        return sum(map(count, self.values.values()))

    def joined(self: Answers[Iterable[U]]) -> list[U]:
        """Return the items of all brokers in one list."""
        return [item for items in self.values.values() for item in items]

    def added(
        self: Answers[Iterable[U]], key: Callable[[U], KeyT], count: Callable[[U], SumT]
    ) -> dict[KeyT, SumT]:
        """Return the sums of the items' counts by a key, such as topic and channel.

        Args:
            key: returns the key of an item; items of different brokers with the same one are added.
            count: returns the number, or counts, of an item.
        """
        sums: dict[KeyT, SumT] = {}
        for item in self.joined():
            item_key, number = key(item), count(item)
            sums[item_key] = sums[item_key] + number if item_key in sums else number
        return sums


@dataclass(frozen=True)
class Position:
    """Where a listing continues: only to be handed back, now or from a program's own state.

    Attributes:
        broker: the URL of the broker.
        place: where there, as JSON.
    """

    broker: str
    place: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class AnswerPage(Generic[T]):
    """Items of one broker, as many as one request returns.

    Attributes:
        broker: its URL.
        items: the items, in order.
        next: where the next page begins, as an argument ``start``; None at the end.
        count: the number of all items there, if the broker says.
    """

    broker: str
    items: tuple[T, ...]
    next: Position | None = None
    count: int | None = None
