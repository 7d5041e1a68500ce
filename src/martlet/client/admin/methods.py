"""Methods made of operations: the parameters are those of the request, the result is the answer.

One attribute serves both clients: of an `OperationGroup` it is a coroutine function or an async
generator function, of a `BlockingOperationGroup` a function that blocks or a generator function.
Where the parameters differ from the request's fields, as where a list continues, a subclass of the
request declares them.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    cast,
    get_args,
    get_type_hints,
    overload,
)

from msgspec.structs import replace

from martlet.client.admin.answers import AnswerPage, Answers, Position
from martlet.client.admin.errors import AdminError, AdminNotFound
from martlet.client.errors import InvalidName
from martlet.client.names import check_name
from martlet.names import ID_RULE, is_message_id
from martlet.schema.operation import Operation, OperationPage, OperationRequest
from martlet.schema.read import (
    Refusal,
    checked,
    fields_of,
    help_of,
    is_position,
    read_answer,
)

if TYPE_CHECKING:
    from martlet.client.admin.decode import Fields
    from martlet.client.admin.http import AdminHttp

P = ParamSpec("P")
T = TypeVar("T")
AnswerT = TypeVar("AnswerT")
AwaitedT = TypeVar("AwaitedT")
BlockingT = TypeVar("BlockingT")
SumT = TypeVar("SumT", bound="Addend")
PAGE_ITEMS = 1000


class OperationGroup:
    """Methods of `Admin` about one kind of thing."""

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


class Addend(Protocol):
    """An answer to one of several calls whose answers are added up."""

    @property
    def following(self) -> Mapping[str, object] | None:
        """The fields of the next request; None at the end."""

    def added(self: T, later: T, /) -> T:
        """Return the sum with the next answer."""


class DeclaredMethod(ABC, Generic[P, AwaitedT, BlockingT]):
    """A method made of an operation; called through its class it takes an instance first.

    Args:
        make: makes the request of the parameters: its class, or a subclass.
        summary: the first line of its help (default: the operation's).
    """

    def __init__(
        self,
        operation: Operation[..., Any, Any],
        make: Callable[P, OperationRequest],
        returns: str,
        summary: str | None = None,
    ) -> None:
        self._operation = operation
        self._make = make
        kind = cast("type[OperationRequest]", make)
        texts = help_of(kind)
        self.__doc__ = f"{summary or operation.summary}\n\nArgs:\n" + "\n".join(
            f"    {field.name}: {texts[name]}" for name, field in fields_of(kind).items()
        )
        self.__signature__ = _signature(make, returns)

    def __set_name__(self, owner: type, name: str) -> None:
        self.__name__ = name

    def __call__(
        self,
        group: OperationGroup | BlockingOperationGroup,
        /,
        *arguments: P.args,
        **named: P.kwargs,
    ) -> Any:
        """Call it as a method of an operation group."""
        return self._of(group)(*arguments, **named)

    @overload
    def __get__(self, group: None, owner: type) -> Self: ...

    @overload
    def __get__(self, group: OperationGroup, owner: type) -> Callable[P, AwaitedT]: ...

    @overload
    def __get__(self, group: BlockingOperationGroup, owner: type) -> Callable[P, BlockingT]: ...

    def __get__(self, group: OperationGroup | BlockingOperationGroup | None, owner: type) -> Any:
        if group is None:
            return self
        function = self._of(group)
        function.__name__, function.__doc__ = self.__name__, self.__doc__
        function.__signature__ = self.__signature__
        return function

    @abstractmethod
    def _of(self, group: OperationGroup | BlockingOperationGroup) -> Any: ...


class Method(DeclaredMethod[P, Coroutine[Any, Any, T], T], Generic[P, T]):
    """A method that is awaited, or blocks.

    Attributes:
        run: queries with a request, for callers that have one.
    """

    def __init__(
        self,
        operation: Operation[..., Any, Any],
        make: Callable[P, OperationRequest],
        returns: str,
        run: Callable[[AdminHttp, OperationRequest], Coroutine[Any, Any, T]],
        summary: str | None = None,
    ) -> None:
        super().__init__(operation, make, returns, summary)
        self.run = run

    def _of(self, group: OperationGroup | BlockingOperationGroup) -> Any:
        async def ask(*arguments: P.args, **named: P.kwargs) -> T:
            with _refused():
                return await self.run(group._http, self._make(*arguments, **named))

        if isinstance(group, OperationGroup):
            return ask
        waited = group._waited
        return lambda *arguments, **named: waited(lambda: ask(*arguments, **named))


class PagesMethod(
    DeclaredMethod[P, AsyncGenerator[AnswerPage[T]], Iterator[AnswerPage[T]]], Generic[P, T]
):
    """A method that yields the pages of one broker after the other."""

    def __init__(
        self, operation: Operation[..., Any, OperationPage[T]], make: Callable[P, OperationRequest]
    ) -> None:
        super().__init__(operation, make, f"AsyncGenerator[AnswerPage[{_item(operation)}]]")

    def _of(self, group: OperationGroup | BlockingOperationGroup) -> Any:
        async def pages(*arguments: P.args, **named: P.kwargs) -> AsyncGenerator[AnswerPage[T]]:
            with _refused():
                request = self._make(*arguments, **named)
                start: Position | None = getattr(request, "start", None)
                async for page in self.run(group._http, request, start):
                    yield page

        if isinstance(group, OperationGroup):
            return pages
        iterated = group._iterated
        return lambda *arguments, **named: iterated(pages(*arguments, **named))

    async def run(
        self, http: AdminHttp, request: OperationRequest, start: Position | None = None
    ) -> AsyncGenerator[AnswerPage[T]]:
        """Yield the pages of a request, from the start or an earlier `AnswerPage.next` on.

        Raises AdminError, also where that position would change what the request selects.
        """
        if start is not None:
            _check_position(self._operation.request, start)
        fields, limit = _page_fields(self._operation, request)

        def at(url: str, position: Fields) -> AsyncGenerator[AnswerPage[T]]:
            return _pages(http, url, self._operation, fields, limit, position)

        async for page in http.pages(fields.get("topic", ""), at, start):
            yield page


def _check_position(kind: type[OperationRequest], start: Position) -> None:
    """Refuse a position that sets other fields of the request. The admin page takes positions from
    its URL, and a viewer may not choose every field. Fields of a newer broker pass.
    """
    fields = fields_of(kind)
    for name in start.place:
        if name in fields and not is_position(fields[name]):
            raise AdminError(start.broker, f"no list continues at {name!r}: begin it again")


def _signature(make: Callable[..., OperationRequest], returns: str) -> inspect.Signature:
    """Return the parameters of a request, with their types but without limits."""
    signature = inspect.signature(make)
    types = get_type_hints(make)
    parameters = [
        parameter.replace(annotation=types[name])
        for name, parameter in signature.parameters.items()
    ]
    return signature.replace(parameters=parameters, return_annotation=returns)


def _item(operation: Operation[..., Any, OperationPage[Any]]) -> str:
    """Return the name of the class of a list's items."""
    items: Any = operation.answer.items
    name: str = get_args(get_type_hints(items.fget)["return"])[0].__name__
    return name


@overload
def at_each(operation: Operation[P, Any, AnswerT]) -> Method[P, Answers[AnswerT]]: ...


@overload
def at_each(
    operation: Operation[P, Any, AnswerT], convert: Callable[[AnswerT], T]
) -> Method[P, Answers[T]]: ...


def at_each(
    operation: Operation[P, Any, Any], convert: Callable[[Any], Any] | None = None
) -> Method[P, Answers[Any]]:
    """Make a method that queries each broker.

    Args:
        convert: converts an answer; the method has its docstring, and the type of its result.
    """

    async def run(http: AdminHttp, request: OperationRequest) -> Answers[Any]:
        fields = checked(operation.request, request)
        answers = await http.call_each(
            operation.name, fields, lambda answer: read_answer(operation.answer, answer)
        )
        return answers if convert is None else answers.map(convert)

    summary: str | None = None
    result: Any = operation.answer.__name__
    if convert is not None:
        result, summary = inspect.signature(convert).return_annotation, convert.__doc__
    returns = f"Answers[{result}]" if isinstance(result, str) else "Answers"
    return Method(operation, operation.make, returns, run, summary)


def summed(operation: Operation[P, Any, SumT]) -> Method[P, Answers[SumT]]:
    """Make a method that calls each broker until all is done, and adds up the answers."""

    async def run(http: AdminHttp, request: OperationRequest) -> Answers[SumT]:
        fields = checked(operation.request, request)

        async def all_at(url: str) -> SumT:
            total = answer = await called(http, url, operation, fields)
            while answer.following is not None:
                later = await _continued(http, url, operation, {**fields, **answer.following})
                if later is None:
                    break
                total, answer = total.added(later), later
            return total

        return await http.each(await http.brokers(fields.get("topic", "")), all_at)

    return Method(operation, operation.make, f"Answers[{operation.answer.__name__}]", run)


def listed(
    operation: Operation[..., Any, OperationPage[T]], make: Callable[P, OperationRequest]
) -> Method[P, Answers[tuple[T, ...]]]:
    """Make a method that lists the items of each broker, up to the request's limit."""

    async def run(http: AdminHttp, request: OperationRequest) -> Answers[tuple[T, ...]]:
        fields, limit = _page_fields(operation, request)
        answers = await http.collected(
            fields.get("topic", ""),
            lambda url, position: _pages(http, url, operation, fields, limit, position),
        )
        return answers.map(lambda items: items[:limit])

    return Method(operation, make, f"Answers[tuple[{_item(operation)}, ...]]", run)


def _page_fields(
    operation: Operation[..., Any, Any], request: Any
) -> tuple[dict[str, Any], int | None]:
    """Return the fields of a request for all pages of all brokers, and its limit apart: a maximum
    of items of each broker, which may be 0; None for no limit. Raises Refusal.
    """
    is_none = type(request.limit) is int and request.limit == 0
    fields = checked(operation.request, replace(request, limit=None) if is_none else request)
    return fields, fields.pop("limit", 0 if is_none else None)


async def _pages(
    http: AdminHttp,
    url: str,
    operation: Operation[..., Any, OperationPage[T]],
    fields: Fields,
    limit: int | None,
    position: Fields,
) -> AsyncGenerator[AnswerPage[T]]:
    """Yield the pages of one broker, up to a limit. The last may be longer: items stay together."""
    left = limit
    following: Mapping[str, Any] | None = position
    while following is not None and left != 0:
        count = PAGE_ITEMS if left is None else min(PAGE_ITEMS, left)
        page_fields = {**fields, "limit": count, **following}
        call = _continued if following else called
        page = await call(http, url, operation, page_fields)
        if page is None:
            return
        if left is not None:
            left = max(0, left - len(page.items))
        following = page.following
        at = Position(url, following) if following else None
        total: int | None = getattr(page, "count", None)
        yield AnswerPage(broker=url, items=page.items, next=at, count=total)


def search_timeout_s(time_limit_ms: int) -> float:
    """Return how long to wait for a search that ends by its own time limit, and answers then."""
    return time_limit_ms / 1000 + 5


async def called(
    http: AdminHttp, url: str, operation: Operation[..., Any, AnswerT], fields: Fields
) -> AnswerT:
    """Make one call. Raises AdminError."""
    return await http.call(
        url, operation.name, fields, lambda answer: read_answer(operation.answer, answer)
    )


async def _continued(
    http: AdminHttp, url: str, operation: Operation[..., Any, AnswerT], fields: Fields
) -> AnswerT | None:
    """Call a broker for what begins where an answer ended; None if that is gone meanwhile."""
    try:
        return await called(http, url, operation, fields)
    except AdminNotFound:
        return None


@contextmanager
def _refused() -> Iterator[None]:
    """Raise the refusal of a request as a client's error."""
    try:
        yield
    except Refusal as refusal:
        kind = InvalidName if refusal.code == "BAD_NAME" else ValueError
        raise kind(str(refusal)) from None


def target(topic: str, channel: str | None = None) -> dict[str, str]:
    """Return the names of a topic or a channel as arguments. Raises InvalidName."""
    names = {"topic": topic} | ({} if channel is None else {"channel": channel})
    for kind, name in names.items():
        check_name(name, kind)
    return names


def id_text(message_id: str | bytes) -> str:
    """Return the id of a message as text. Raises ValueError: it is no id."""
    text = message_id.decode("ascii", "replace") if isinstance(message_id, bytes) else message_id
    if not is_message_id(text):
        raise ValueError(f"{ID_RULE}: {text[:80]!r}")
    return text
