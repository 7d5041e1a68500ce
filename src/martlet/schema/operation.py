"""What an operation is: a name, a request, an answer, and who may call it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, ParamSpec, Protocol, TypeVar, cast

from msgspec import Struct

if TYPE_CHECKING:
    from martlet.schema.access import CallAccess

P = ParamSpec("P")


class OperationRequest(Struct, omit_defaults=True):
    """The base of requests: a field that has its default is not sent.

    The docstring of a class has a line ``name: help`` for each field of its own. Rules between
    fields are in ``__post_init__``, which raises `martlet.schema.read.Refusal`.
    """

    section: ClassVar[str] = ""
    """The title above its own fields in the help of a command."""
    selecting: ClassVar[tuple[str, ...]] = ()
    """Fields that select what is acted on: null is refused there, so that it never means all."""
    former: ClassVar[Mapping[str, str]] = {}
    """The names of fields by their former ones. Brokers take both; clients send the former, since
    older brokers know no others.
    """


class OperationAnswer(Struct, omit_defaults=True, dict=True):
    """The base of answers. Readers ignore unknown fields.

    A field of the first version has no default: it is always sent. A later one has a default, for
    answers of older brokers, and is left out where it has it.
    """

    @property
    def fields(self) -> Mapping[str, Any]:
        """The broker's JSON object, with what this version may not know; of a client's answers."""
        fields: Mapping[str, Any] = self.__dict__.get("fields", {})
        return fields


RequestT = TypeVar("RequestT", bound=OperationRequest)
AnswerT_co = TypeVar("AnswerT_co", covariant=True)
ItemT_co = TypeVar("ItemT_co", covariant=True)


class OperationPage(Protocol[ItemT_co]):
    """An answer that has a part of a list."""

    @property
    def items(self) -> tuple[ItemT_co, ...]:
        """The items, in order."""

    @property
    def following(self) -> Mapping[str, object] | None:
        """The fields of the request for the next page; None at the end."""


@dataclass(frozen=True)
class Operation(Generic[P, RequestT, AnswerT_co]):
    """An operation; `P` are the parameters of its request."""

    name: str
    request: type[RequestT]
    answer: type[AnswerT_co]
    access: CallAccess
    """Who may call it."""
    summary: str
    """What it does: the first line of its help and its reference."""
    make: Callable[P, OperationRequest]
    """The class of the request as a function, for its parameters; or a class with the parameters of
    clients and commands, where they differ, and properties of its fields.
    """

    @property
    def parameters(self) -> type[OperationRequest]:
        """The class that `make` is."""
        return cast("type[OperationRequest]", self.make)


def operation(
    name: str,
    request: Callable[P, RequestT],
    answer: type[AnswerT_co],
    access: CallAccess,
    summary: str,
) -> Operation[P, RequestT, AnswerT_co]:
    """Declare an operation."""
    return Operation(name, cast("type[RequestT]", request), answer, access, summary, request)
