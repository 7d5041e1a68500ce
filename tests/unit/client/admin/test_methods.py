"""Methods that are made of operations: their types for type checkers, and their signatures."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, assert_type

import pytest
from msgspec import Meta, field

from martlet.client import Admin, AdminError, InvalidName, sync
from martlet.client.admin import (
    AnswerPage,
    Answers,
    Cancelled,
    DeadLetterMessage,
    DeadLetterTopicCounts,
    DelayedMessage,
    FoundMessages,
    GroupDescription,
    GroupReset,
    GroupSummary,
    Moved,
    Position,
    ResetPosition,
    methods,
)
from martlet.client.admin.http import AdminHttp
from martlet.client.admin.methods import OperationGroup, PagesMethod, at_each, listed
from martlet.client.admin.settings import AdminSettings
from martlet.schema.access import OPERATORS
from martlet.schema.kinds import Limit, Text
from martlet.schema.operation import OperationAnswer, OperationRequest, operation

ADDRESS = "127.0.0.1:4151"


class ListNumbers(OperationRequest):
    """Which numbers to list.

    limit: maximum numbers
    from: begin behind this one
    """

    limit: Limit | None = None
    behind: Annotated[Text, Meta(extra={"flag": ""})] | None = field(name="from", default=None)


class Numbers(OperationAnswer):
    """Some of them; they go on behind the last, which is a text."""

    numbers: tuple[int, ...]
    count: int
    next: str

    @property
    def items(self) -> tuple[int, ...]:
        """The numbers."""
        return self.numbers

    @property
    def following(self) -> Mapping[str, object] | None:
        """The fields of the request for the next page."""
        return {"from": self.next} if self.next else None


NUMBERS = operation("numbers.list", ListNumbers, Numbers, OPERATORS, "List numbers.")


class NumberAdmin(OperationGroup):
    """The methods."""

    list = listed(NUMBERS, ListNumbers)
    pages = PagesMethod(NUMBERS, ListNumbers)
    each = at_each(NUMBERS)


class OneBroker(AdminHttp):
    """It answers numbers in pairs that stay together."""

    def __init__(self) -> None:
        super().__init__([ADDRESS], [], AdminSettings())
        self.requests: list[Mapping[str, Any]] = []

    async def call(
        self, url: str, name: str, fields: Mapping[str, Any], convert: Any = None, **_: Any
    ) -> Any:
        """Answer."""
        self.requests.append(fields)
        first = int(fields.get("from", -1)) + 1
        numbers = list(range(7))[first : first + fields["limit"] + fields["limit"] % 2]
        following = str(numbers[-1]) if numbers[-1] < 6 else ""
        return convert({"numbers": numbers, "count": 7, "next": following})


async def asynchronous_types(admin: Admin, position: Position) -> None:
    """mypy checks it; nothing calls it."""
    letters = admin.dead_letters
    assert_type(await letters.list("t", "c"), Answers[tuple[DeadLetterTopicCounts, ...]])
    shown = await letters.show("t", "c", limit=3, reason="timeout", ids=["0" * 16, b"0" * 16])
    assert_type(shown, Answers[tuple[DeadLetterMessage, ...]])
    assert_type(await letters.redrive("t", "c", all=True, to_topic="x"), Answers[Moved])
    assert_type(await letters.purge(dead_letter_topic="d", since_ms=5), Answers[Moved])
    pages = letters.pages("t", "c", start=position, limit=None)
    assert_type(pages, AsyncGenerator[AnswerPage[DeadLetterMessage]])
    delayed = admin.delayed
    assert_type(await delayed.list("t", limit=3), Answers[tuple[DelayedMessage, ...]])
    delayed_pages = delayed.pages("t", start=position)
    assert_type(delayed_pages, AsyncGenerator[AnswerPage[DelayedMessage]])
    assert_type(await delayed.cancel("t", b"0" * 16), Answers[Cancelled])
    assert_type(await delayed.cancel_all("t"), Answers[Cancelled])
    assert_type(await admin.trace.find(b"0" * 16, topic="t"), Answers[FoundMessages])
    groups = admin.groups
    assert_type(await groups.list("t"), Answers[tuple[GroupSummary, ...]])
    assert_type(await groups.describe("t", "g"), Answers[GroupDescription])
    assert_type(await groups.lag("t", "g"), Answers[int])
    to: ResetPosition = {"to_offset": 5}
    assert_type(await groups.reset("t", "g", queue=0, force=True, **to), Answers[GroupReset])


def blocking_types(admin: sync.Admin, position: Position) -> None:
    """mypy checks it; nothing calls it."""
    letters = admin.dead_letters
    assert_type(letters.list("t", "c"), Answers[tuple[DeadLetterTopicCounts, ...]])
    shown = letters.show("t", "c", limit=None, error="x", max_body_bytes=0)
    assert_type(shown, Answers[tuple[DeadLetterMessage, ...]])
    assert_type(letters.redrive("t", "c", dry_run=True, all=True), Answers[Moved])
    assert_type(letters.purge("t", "c", until_ms=5).total(lambda moved: moved.count), int)
    assert_type(letters.pages("t", start=position), Iterator[AnswerPage[DeadLetterMessage]])
    assert_type(admin.delayed.cancel("t", ["0" * 16]), Answers[Cancelled])
    assert_type(admin.trace.find(key="k", since_ns=5, limit=3), Answers[FoundMessages])
    assert_type(admin.delayed.cancel_all("t").total(lambda done: len(done.cancelled)), int)
    assert_type(admin.groups.list(), Answers[tuple[GroupSummary, ...]])
    assert_type(admin.groups.reset("t", "g", to_last=True, dry_run=True), Answers[GroupReset])


WRONG = """
from martlet.client import Admin, sync

async def asynchronous(admin: Admin) -> None:
    await admin.dead_letters.redrive("t", "c", al=True)
    await admin.dead_letters.redrive("t", "c", reason="nope")
    await admin.dead_letters.list("t", "c", "d")
    await admin.dead_letters.list(start=None)
    await admin.delayed.list()
    await admin.delayed.cancel_all("t", ids=[])
    await admin.trace.find("0" * 16, "k")
    await admin.groups.describe("t")
    await admin.groups.reset("t", "g", to="first")

def blocking(admin: sync.Admin) -> None:
    admin.dead_letters.purge("t", "c", to_topic="x")
    admin.dead_letters.show("t", "c", limit="3")
    for page in admin.dead_letters.pages("t", "c", start=1):
        page.items[0].colour
"""


@pytest.mark.timeout(600)
def test_a_wrong_argument_is_an_error_of_mypy(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(WRONG)
    root = Path(__file__).parents[4]
    # The cache is the checkout's: a change since the last check is read again.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(path)],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = {int(line.split(":")[1]): line for line in done.stdout.splitlines() if "error:" in line}
    wrong = [
        n
        for n, line in enumerate(WRONG.splitlines(), 1)
        if "admin." in line and "import" not in line
    ]
    assert sorted(lines) == [*wrong, len(WRONG.splitlines())], done.stdout + done.stderr
    assert 'Unexpected keyword argument "al"' in lines[wrong[0]]


async def test_a_list_goes_on_by_what_the_answer_says_and_ends_at_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(methods, "PAGE_ITEMS", 2)
    http = OneBroker()
    assert (await NumberAdmin(http).list(limit=3)).joined() == [0, 1, 2]
    assert http.requests == [{"limit": 2}, {"limit": 1, "from": "1"}]
    pages = [page async for page in NumberAdmin(http).pages(limit=3)]
    assert [(page.items, page.count) for page in pages] == [((0, 1), 7), ((2, 3), 7)]
    assert pages[1].next is not None
    assert pages[1].next.place == {"from": "3"}
    pages = [page async for page in NumberAdmin.pages.run(http, ListNumbers(), pages[1].next)]
    assert [page.items for page in pages] == [(4, 5), (6,)]
    (answer,) = (await NumberAdmin(http).each(limit=2, behind="4")).values.values()
    assert (answer.numbers, answer.fields["count"]) == ((5, 6), 7)


async def test_a_list_goes_on_at_a_position_and_at_no_other_field_of_its_request() -> None:
    """A page takes positions from addresses, where a user may write what the page would refuse."""
    http = OneBroker()
    url = f"http://{ADDRESS}"
    for place in ({"limit": 5}, {"from": "1", "limit": 5}):
        with pytest.raises(AdminError, match="no list continues at 'limit': begin it again"):
            await anext(NumberAdmin.pages.run(http, ListNumbers(), Position(url, place)))
    assert http.requests == []
    newer = Position(url, {"from": "1", "unknown": 5})
    page = await anext(NumberAdmin.pages.run(http, ListNumbers(limit=2), newer))
    assert (page.items, http.requests[0]["unknown"]) == ((2, 3), 5)


async def test_a_list_is_checked_once_before_any_broker_is_asked() -> None:
    """Ids may come from an iterator, which is read once however many brokers there are."""
    letters = Admin([ADDRESS, "127.0.0.1:4153"]).dead_letters
    requests: list[Mapping[str, Any]] = []

    async def call(url: str, name: str, fields: Mapping[str, Any], convert: Any) -> Any:
        requests.append(fields)
        return convert({"messages": [], "next": None})

    letters._http.call = call  # type: ignore[method-assign,assignment]
    await letters.show("t", "c", ids=iter(["0" * 16]))
    assert [page.items async for page in letters.pages("t", "c", ids=iter(["1" * 16]))] == [(), ()]
    assert [fields["ids"] for fields in requests] == [["0" * 16]] * 2 + [["1" * 16]] * 2
    wrong: list[tuple[Any, str]] = [("x", "'x'"), (-1, "-1"), (True, "True"), (1.5, "1.5")]
    for limit, shown in wrong:
        with pytest.raises(ValueError, match=f"limit must be a whole number .* not {shown}$"):
            await letters.show("t", "c", limit=limit)
    with pytest.raises(ValueError, match="ids: an id has 16 hexadecimal digits, not 5"):
        await letters.show("t", "c", ids=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidName):
        await letters.show("a b", "c")
    assert (await letters.show("t", "c", limit=0)).joined() == []
    assert len(requests) == 4


def test_the_help_of_a_method_has_the_names_of_its_parameters() -> None:
    assert str(NumberAdmin.each.__doc__).endswith(
        "Args:\n    limit: maximum numbers\n    behind: begin behind this one"
    )
    assert str(inspect.signature(NumberAdmin.each)) == (
        "(limit: Optional[int] = None, behind: Optional[str] = None) -> 'Answers[Numbers]'"
    )


def test_a_method_has_the_signature_and_the_help_of_its_operation() -> None:
    letters, blocking = Admin(ADDRESS).dead_letters, sync.Admin(ADDRESS).dead_letters
    for group in (letters, blocking, type(letters), type(blocking)):
        assert str(inspect.signature(group.list)) == (
            "(topic: Optional[str] = None, channel: Optional[str] = None,"
            " *, dead_letter_topic: Optional[str] = None) -> 'Answers'"
        )
        assert "start" in inspect.signature(group.pages).parameters
        assert "start" not in inspect.signature(group.show).parameters
        assert inspect.signature(group.show).parameters["limit"].default == 20
        assert group.purge.__name__ == "purge"
        assert str(group.purge.__doc__).startswith("Delete dead letters.\n\nArgs:\n    topic: the")
    groups = Admin(ADDRESS).groups
    assert str(inspect.signature(groups.describe)) == (
        "(topic: str, group: str) -> 'Answers[GroupDescription]'"
    )
    assert str(inspect.signature(groups.lag)) == "(topic: str, group: str) -> 'Answers[int]'"
    assert str(groups.lag.__doc__).startswith("Return the messages that a group has not")
    parameters = inspect.signature(groups.reset).parameters
    assert {"to_first", "to_last", "to_time_ms", "to_offset"} < parameters.keys()
    assert "to" not in parameters
    assert inspect.iscoroutinefunction(letters.redrive)
    assert inspect.isasyncgenfunction(letters.pages)


def test_a_wrong_argument_is_an_error_where_it_is_awaited() -> None:
    admin = Admin(ADDRESS)
    with pytest.raises(TypeError, match="al"):
        asyncio.run(admin.dead_letters.redrive("t", "c", al=True))  # type: ignore[call-arg]
    with pytest.raises(InvalidName, match="topic 'a b' is not valid"):
        asyncio.run(anext(admin.dead_letters.pages("a b", "c")))
