"""Transactions that have not ended: those set aside for an operator first, and how to end them."""

from __future__ import annotations

from functools import partial

from aiohttp import web

from martlet.client.admin import AdminNotFound, TransactionAdmin
from martlet.console.actions import Action, Preview, with_failures
from martlet.console.guard import user_of
from martlet.console.inputs import Inputs, inputs_of
from martlet.console.pages.bodies import LISTED_BYTES, body_text
from martlet.console.site import SITE
from martlet.schema.transactions import CommitTransaction, EndTransaction, ShowTransaction
from martlet.text import counted

_MAX_LISTED = 500
_MAX_SHOWN = 100
_MAX_COUNTED = 1000
_ASIDE = "set-aside"
_ENDED = ("committed", "rolled-back")
_STATES = {
    "open": "its producer may add messages",
    "silent": "its producer fell silent",
    "prepared": "its producer is to commit it",
    "in-doubt": "producers are asked for its end",
    "committing": "its commit is under way",
    _ASIDE: "no producer knew its end: an operator ends it",
}


async def overview(request: web.Request) -> web.StreamResponse:
    """``/transactions``"""
    site = request.app[SITE]
    await site.collector.fresh()
    answers = await site.admin.transactions.list(limit=_MAX_LISTED)
    rows = [(url, one) for url, listed in answers.values.items() for one in listed]
    rows.sort(key=lambda row: (row[1].state != _ASIDE, row[1].begun_at_ms))
    full = [url for url, listed in answers.values.items() if len(listed) >= _MAX_LISTED]
    return site.page(
        request,
        "transactions.html",
        {
            "rows": rows,
            "states": _STATES,
            "seen": {one.state for _, one in rows},
            "full": full,
            "limit": _MAX_LISTED,
            "failures": list(answers.failures.values()),
        },
    )


async def transaction(request: web.Request) -> web.StreamResponse:
    """``/transactions/ID``"""
    site = request.app[SITE]
    inputs = await inputs_of(request)
    sees = user_of(request).sees_bodies
    shown = inputs.request(
        ShowTransaction,
        id=request.match_info["id"],
        limit=_MAX_SHOWN,
        max_body_bytes=LISTED_BYTES if sees else 0,
    )
    answers = await TransactionAdmin.show.run(inputs.admin.http, shown)
    ((url, described),) = list(answers.values.items())[:1]
    return site.page(
        request,
        "transaction.html",
        {
            "broker": url,
            "transaction": described,
            "states": _STATES,
            "is_ended": described.state in _ENDED,
            "rows": [
                (message, body_text(message.body, message.body_bytes, max_bytes=LISTED_BYTES))
                for message in described.messages
            ],
            "max_shown": _MAX_SHOWN,
        },
    )


async def _preview(inputs: Inputs, how: str) -> Preview:
    request = inputs.request(ShowTransaction, limit=_MAX_COUNTED, max_body_bytes=0)
    title = f"{_verb(how)} transaction {request.id}"
    try:
        answers = await TransactionAdmin.show.run(inputs.admin.http, request)
        ((url, described),) = list(answers.values.items())[:1]
    except AdminNotFound as error:
        return Preview(title=title, button="", lines=[error.why], is_possible=False)
    if described.state in _ENDED:
        return Preview(
            title=title, button="", lines=[f"It is {described.state} already."], is_possible=False
        )
    more = "at least " if len(described.messages) == _MAX_COUNTED else ""
    some = more + counted(len(described.messages), "message", form=",")
    topics = ", ".join(sorted({message.topic for message in described.messages})) or "no topic"
    if how == "commit":
        lines = [f"{some} become visible in {topics}, together."]
    else:
        lines = [f"{some} of {topics} are dropped: no consumer gets them."]
    meaning = _STATES.get(described.state, "a state of a later version")
    lines.append(f"It is {described.state}: {meaning}.")
    return Preview(
        title=title,
        button=f"{_verb(how)} {some} at {url.partition('://')[2]}",
        lines=lines,
        fields={"broker": url},
    )


def _verb(how: str) -> str:
    return "Commit" if how == "commit" else "Roll back"


async def _do(inputs: Inputs, how: str) -> str:
    request = inputs.request(CommitTransaction if how == "commit" else EndTransaction)
    end = TransactionAdmin.commit if how == "commit" else TransactionAdmin.rollback
    answers = await end.run(inputs.admin.http, request)
    (outcome,) = list(answers.values.values())[:1]
    return with_failures(f"Transaction {request.id} is {outcome.state}", answers)


ACTIONS = {
    f"{how}_transaction": Action(partial(_preview, how=how), partial(_do, how=how))
    for how in ("commit", "rollback")
}
