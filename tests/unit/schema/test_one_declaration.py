"""A field that a declaration adds is in every face, without a line in any other file."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest.mock import Mock

import pytest
from docs.reference.generate import described
from multidict import MultiDict

from martlet.cli import start
from martlet.cli.operation_flags import OperationOptions, with_flags_of
from martlet.client import Admin, AdminError, sync
from martlet.client.admin.methods import OperationGroup, PagesMethod, listed
from martlet.client.sync.admin import _SyncOperationGroup
from martlet.console.inputs import ActionRefused, Inputs
from martlet.options.flag import OptionError
from martlet.schema.access import OPERATORS
from martlet.schema.dead_letters import (
    DeadLetterMessage,
    DeadLetters,
    PurgeDeadLetters,
    ShowDeadLetters,
)
from martlet.schema.kinds import Text, TimeMs
from martlet.schema.operation import operation
from martlet.server.rpc.registry import Caller, served
from martlet.testing import Broker


class ShowPainted(ShowDeadLetters, kw_only=True):
    """Which dead letters to show.

    color: only those of this color
    painted_ms: only those painted at or after this time
    """

    section: ClassVar[str] = "which colors"
    selecting: ClassVar[tuple[str, ...]] = (*ShowDeadLetters.selecting, "color")
    color: Text | None = None
    painted_ms: TimeMs | None = None


class PaintedLetter(DeadLetterMessage, kw_only=True):
    """A dead letter that has a color."""

    color: str = "none"


class PaintedLetters(DeadLetters):
    """Some of them."""

    messages: tuple[PaintedLetter, ...]

    @property
    def items(self) -> tuple[PaintedLetter, ...]:
        """The dead letters."""
        return self.messages


PAINTED = operation(
    "dead_letters.painted", ShowPainted, PaintedLetters, OPERATORS, "Show painted dead letters."
)


async def paint(caller: Caller, request: ShowPainted) -> PaintedLetters:
    letter = PaintedLetter(
        id="0" * 16,
        queue=0,
        offset=request.painted_ms or 0,
        state="due",
        at_ms=0,
        message_id="",
        message_offset="",
        tag="",
        keys=(),
        order_key="",
        headers={},
        body_bytes=0,
        body_text="",
        color=request.color or "none",
    )
    return PaintedLetters((letter,), None)


class PaintMethods:
    """The methods of both clients."""

    show = listed(PAINTED, ShowPainted)
    pages = PagesMethod(PAINTED, ShowPainted)


class PaintAdmin(PaintMethods, OperationGroup):
    """Of the asyncio client."""


class BlockingPaintAdmin(_SyncOperationGroup, PaintMethods):
    """Of the blocking client."""


@with_flags_of(show=PAINTED)
@dataclass(frozen=True, kw_only=True)
class PaintOptions(OperationOptions):
    """The options of a command."""


async def test_the_call_and_both_clients_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Broker() as broker, Admin(broker.http_address) as admin:
        calls = broker.server.calls
        monkeypatch.setattr(calls, "methods", {**calls.methods, **served(PAINTED, paint)})
        letters = PaintAdmin(admin.http)
        (red,) = (await letters.show("t", "c", color="red", painted_ms=7)).joined()
        assert (red.color, red.offset, red.fields["color"]) == ("red", 7, "red")
        (none,) = [letter async for page in letters.pages("t", "c") for letter in page.items]
        assert (none.color, "color" in none.fields) == ("none", False)
        with pytest.raises(AdminError, match="'color' must be a text of at most 1024 characters"):
            await admin.http.call(
                f"http://{broker.http_address}",
                PAINTED.name,
                {"topic": "t", "channel": "c", "color": 5},
            )
        with pytest.raises(ValueError, match="color is empty"):
            await letters.show("t", "c", color="")

        assert await asyncio.to_thread(block_in, broker.http_address) == ("blue", "red")


def block_in(address: str) -> tuple[str, str]:
    with sync.Admin(address) as blocking:
        group = BlockingPaintAdmin(blocking, PaintAdmin(blocking._model.http))
        (page,) = group.pages("t", "c", color="blue")
        return page.items[0].color, group.show("t", "c", color="red").joined()[0].color


@pytest.mark.parametrize("group", [PaintAdmin(Mock()), BlockingPaintAdmin(Mock(), Mock())])
@pytest.mark.parametrize("method", ["show", "pages"])
def test_both_clients_signatures_and_helps_have_it(group: Any, method: str) -> None:
    made = getattr(group, method)
    assert "color: Optional[str] = None" in str(inspect.signature(made))
    assert "painted_ms: only those painted at or after this time" in made.__doc__


def test_the_command_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        start.arguments("paint", "Paints.", PaintOptions).read(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "which colors: --color TEXT only those of this color --painted TEXT only those" in shown
    names = {"action": "show", "topic": "t", "channel": "c"}
    options: Any = PaintOptions
    where = {"nsqd_http_addresses": ("127.0.0.1:1",), **names}
    request = options(**where, color="red", painted="7").request(ShowPainted)
    assert (request.color, request.painted_ms) == ("red", 7000)
    command = options(**where, color="red")
    assert command.request(ShowPainted, color="blue", offset=3).color == "blue"
    with pytest.raises(OptionError, match="--offset must be a whole number from 0"):
        command.request(ShowPainted, offset=-1)
    for fields, why in (
        ({"color": ""}, "--color is empty"),
        ({"color": "x" * 1025}, "--color must be a text of at most 1024 characters"),
        ({"painted": "soon"}, "--painted=soon is no time"),
        ({"since": ""}, "--since is empty"),
        ({"topic": "a b"}, "--topic=a b is not valid: 1 to 64 of the characters"),
    ):
        with pytest.raises(OptionError, match=why):
            options(**{**where, **fields})


def test_the_page_has_it() -> None:
    def form(**fields: str) -> Inputs:
        return Inputs(Mock(), Mock(), MultiDict({"topic": " t ", "channel": "c", **fields}))

    request = form(color=" red", painted="1970-01-01 00:00:07").request(ShowPainted, limit=3)
    assert (request.topic, request.color, request.painted_ms) == ("t", " red", 7000)
    assert request.limit == 3
    assert form(color="", painted="").request(ShowPainted).color is None
    with pytest.raises(ActionRefused, match="color must be a text of at most 1024 characters"):
        form(color="x" * 1025).request(ShowPainted)


@pytest.mark.parametrize("text", ["0", "false", "No", " "])
def test_a_flag_of_a_form_that_says_no_is_not_set(text: str) -> None:
    fields = MultiDict({"topic": "t", "channel": "c", "all": text})
    with pytest.raises(ActionRefused, match="the selection is missing"):
        Inputs(Mock(), Mock(), fields).request(PurgeDeadLetters)


def test_the_reference_has_it() -> None:
    page = described(PAINTED)
    assert "| `color` | a text of at most 1024 characters |  | only those of this color |" in page
    assert "`headers_base64`, `color`), `next`" in page
