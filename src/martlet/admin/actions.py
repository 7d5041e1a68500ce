"""Actions: what a user can do to topics and channels, each with its line of audit.

Their names are nsqadmin's where nsqadmin has them. `martlet.admin.forms` has the pages around them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from martlet.admin.guard import user_of
from martlet.admin.site import SITE, Site
from martlet.client.admin import Admin, AdminError, Answers
from martlet.durations import parse_duration
from martlet.plural import counted
from martlet.properties.model import MAX_PRIORITY


class ActionRefused(Exception):
    """The fields of a form are wrong; the text says how."""


@dataclass(frozen=True)
class Place:
    """The topic or channel that an action changes.

    Attributes:
        topic, channel: their names; the channel empty for a topic.
        broker: the URL of the only broker; empty for all.
    """

    topic: str
    channel: str = ""
    broker: str = ""

    def __str__(self) -> str:
        return f"{self.topic} / {self.channel}" if self.channel else self.topic

    @property
    def subject(self) -> str:
        """Its name in a sentence, such as ``channel work of orders``."""
        return f"channel {self.channel} of {self.topic}" if self.channel else f"topic {self.topic}"


Do = Callable[[Admin, Place, Mapping[str, str]], Awaitable[Answers[Any]]]


@dataclass(frozen=True)
class Action:
    """What can be done.

    Attributes:
        verb: on buttons, such as ``Empty``.
        done: the sentence afterwards, without its place: ``{} was emptied``.
        do: does it.
        destroys: whether it removes messages; their number is shown before.
        confirmed: whether the user is asked before it.
        typed: whether its confirmation wants the name typed, however few messages there are.
        at_daemons: whether it is done at the lookup daemons, also where it concerns one broker.
        where_seen: whether brokers that the newest view shows without the place are not asked.
    """

    verb: str
    done: str
    do: Do
    destroys: bool = False
    confirmed: bool = False
    typed: bool = False
    at_daemons: bool = False
    where_seen: bool = False


async def _create_topic(admin: Admin, place: Place, form: Mapping[str, str]) -> Answers[Any]:
    queues = form.get("queues", "").strip()
    if queues and not queues.isdecimal():
        raise ActionRefused(f"{queues!r} is no number of queues: give one from 1 to 128")
    return await admin.topics.create(place.topic, int(queues) if queues else None)


async def _register(admin: Admin, place: Place, form: Mapping[str, str]) -> Answers[Any]:
    answers = await admin.lookup.create_topic(place.topic)
    return await admin.channels.create(place.topic, place.channel) if place.channel else answers


async def _tombstone(admin: Admin, place: Place, form: Mapping[str, str]) -> Answers[Any]:
    return await admin.nodes.tombstone(place.topic, place.broker.partition("://")[2])


async def _publish(admin: Admin, place: Place, form: Mapping[str, str]) -> Answers[Any]:
    if not form.get("body"):
        raise ActionRefused("a message has a body of at least one byte")
    headers = {}
    for line in form.get("headers", "").splitlines():
        name, colon, value = line.partition(":")
        if line.strip() and not colon:
            raise ActionRefused(f"a header is written name: value, and this line is {line!r}")
        if colon:
            headers[name.strip()] = value.strip()
    defer = form.get("defer", "").strip()
    try:
        defer_ns = parse_duration(defer) if defer else 0
    except ValueError as error:
        raise ActionRefused(f"deliver in: {error}") from None
    if defer_ns < 0:
        raise ActionRefused(f"deliver in: {defer} is in the past")
    for text in (form.get("tag", ""), form.get("order_key", ""), *headers, *headers.values()):
        if not text.isprintable():
            raise ActionRefused(f"{text!r} has characters that a property cannot have")
    # A browser ends the lines of a form with CR LF.
    return await admin.topics.publish(
        place.topic,
        form.get("body", "").replace("\r\n", "\n").encode(),
        tag=form.get("tag") or None,
        keys=form.get("keys", "").split(),
        order_key=form.get("order_key") or None,
        headers=headers,
        priority=_priority(form.get("priority", "")),
        defer_ms=defer_ns // 1_000_000,
    )


def _priority(text: str) -> int | None:
    if not text:
        return None
    if len(text) != 1 or not text.isdecimal():
        raise ActionRefused(f"the priority {text!r}: it is 0 to {MAX_PRIORITY}")
    return int(text)


def _topic(name: str) -> Do:
    return lambda admin, place, _form: getattr(admin.topics, name)(place.topic)


def _channel(name: str) -> Do:
    return lambda admin, place, _form: getattr(admin.channels, name)(place.topic, place.channel)


def _pausing(verb: str, do: Do) -> Action:
    return Action(verb, f"{{}} was {verb.lower()}d", do, where_seen=True)


def _destroying(verb: str, done: str, do: Do, *, typed: bool = False) -> Action:
    return Action(verb, done, do, destroys=True, confirmed=True, typed=typed)


ACTIONS: Mapping[str, Action] = {
    "create_topic": Action("Create", "{} was created", _create_topic),
    "pause_topic": _pausing("Pause", _topic("pause")),
    "unpause_topic": _pausing("Unpause", _topic("unpause")),
    "empty_topic": _destroying("Empty", "{} was emptied", _topic("empty")),
    "delete_topic": _destroying("Delete", "{} was deleted", _topic("delete"), typed=True),
    "create_channel": Action("Create", "{} was created", _channel("create")),
    "pause_channel": _pausing("Pause", _channel("pause")),
    "unpause_channel": _pausing("Unpause", _channel("unpause")),
    "empty_channel": _destroying("Empty", "{} was emptied", _channel("empty")),
    "delete_channel": _destroying("Delete", "{} was deleted", _channel("delete"), typed=True),
    "publish_message": Action("Publish to", "A message was published to {}", _publish),
    "register": Action("Create", "{} was created", _register, at_daemons=True),
    "tombstone_topic_producer": Action(
        "Hide", "{} was hidden", _tombstone, confirmed=True, at_daemons=True
    ),
}


async def perform(request: web.Request, name: str, place: Place, form: Mapping[str, str]) -> str:
    """Do an action at one place, and keep it in the audit; return a sentence about it.

    Args:
        request: of a user who may act.
        name: of the action.
        place: what it changes.
        form: further fields of it.

    Raises:
        AdminError: no server did it; the audit has it.
        ActionRefused: a field is wrong.
    """
    site, user, action = request.app[SITE], user_of(request), ACTIONS[name]
    where = {"topic": place.topic, "channel": place.channel, "node": place.broker}
    try:
        answers = await action.do(_admin_for(site, action, place), place, form)
    except AdminError as error:
        site.audit.failed(request, user, name, str(error), **where)
        raise
    text = _sentence(action, name, place, answers, site.admin.http.daemons)
    if name == "empty_channel" and site.undos.add(
        place.topic, place.channel, user.name, answers.values
    ):
        text += "; it can be undone on the page of the channel"
    site.audit.done(request, user, name, text, **where)
    return text


def _admin_for(site: Site, action: Action, place: Place) -> Admin:
    """Return the way to the servers that an action concerns."""
    if place.broker and not action.at_daemons:
        return site.admin.at(place.broker)
    view = site.collector.places
    if not action.where_seen or view is None:
        return site.admin
    lacking = view.lacking(place.topic, place.channel)
    named = site.admin.http.named_brokers  # Lookup daemons say themselves who has a topic.
    return site.admin.at(*(url for url in named if url not in lacking)) if named else site.admin


def _sentence(
    action: Action, name: str, place: Place, answers: Answers[Any], daemons: Container[str]
) -> str:
    if name == "publish_message":
        subject = place.topic
    elif name == "tombstone_topic_producer":
        subject = f"{place.subject} of {place.broker.partition('://')[2]}"
    else:
        subject = place.subject
    text = action.done.format(subject)
    text = f"{text[0].upper()}{text[1:]} at {_servers(list(answers.values), daemons)}"
    failures = "; ".join(map(str, answers.failures.values()))
    return f"{text}, but not everywhere: {failures}" if failures else text


def _servers(urls: Sequence[str], daemons: Container[str]) -> str:
    """Return which servers did it: ``127.0.0.1:4151``, ``2 brokers and 1 lookup daemon``."""
    brokers = [url for url in urls if url not in daemons]
    if len(brokers) == len(urls) == 1:
        return brokers[0].partition("://")[2]
    parts = [counted(len(brokers), "broker")] if brokers else []
    if len(urls) > len(brokers):
        parts.append(counted(len(urls) - len(brokers), "lookup daemon"))
    return " and ".join(parts)
