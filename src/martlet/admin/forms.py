"""The pages around actions: ``/act``, which does one, and ``/confirm``, which asks before.

A form posts to ``/act`` with the name of the action. An action that destroys something goes through
``/confirm`` first: a page that says what will happen, with numbers that were read for it, and that
wants a name typed where much is at stake.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn
from urllib.parse import urlencode, urlsplit

from aiohttp import web

from martlet.admin.actions import ACTIONS, Action, ActionRefused, Place, perform
from martlet.admin.asked import Asked, Form
from martlet.admin.audit import RefusalReason
from martlet.admin.cluster import ChannelTotals, ClusterView
from martlet.admin.guard import user_of
from martlet.admin.operations import PreviewedChange
from martlet.admin.operations import perform as perform_operation
from martlet.admin.pages.changes import OPERATIONS
from martlet.admin.site import SITE, Site
from martlet.client.admin import AdminError
from martlet.http_connection import body_timer
from martlet.names import NAME_RULE, is_valid_name
from martlet.plural import counted

_TYPED_FROM = 1000
"""From more messages on, an empty wants the name typed."""
MAX_CHOSEN = 500
"""The maximum of topics of one action."""
_MAX_NOTICE = 1000
_WITH_CHANNEL = ("_channel", "register")


async def confirm(request: web.Request) -> web.StreamResponse:
    """``/confirm``: what an action will do, before it is done."""
    site = request.app[SITE]
    _check_role(request)
    view = await site.collector.look_now()
    operation = OPERATIONS.get(request.query.get("action", ""))
    if operation is not None:
        return await _confirm_operation(request, operation, Asked(site, view, request.query))
    action, places = _read(site, view, request.query)
    title = f"{action.verb} {_what(places)}"
    return site.page(
        request,
        "confirm.html",
        {
            "title": title,
            "consequences": _consequences(view, places, action),
            "typed": _typed(view, places, action),
            "fields": [each for each in request.query.items() if each[0] != "typed"],
            "button": _button(view, places, action),
            "obstacle": "",
            "back": _back(site, request.query.get("back", "")),
        },
    )


async def act(request: web.Request) -> web.StreamResponse:
    """``/act``: do what a form says, and go back to its page."""
    site = request.app[SITE]
    form = await _form(request)
    _check_role(request)
    view = await _view_for(site, form)
    operation = OPERATIONS.get(form.get("action", ""))
    if operation is not None:
        text = await _operate(request, operation, Asked(site, view, form))
        site.collector.look_later(is_in_place=False)
        _return(_back(site, form.get("back", "")), text)
    action, places = _read(site, view, form)
    _check_typed(view, action, places, form)
    text = await _perform_all(request, places, form)
    site.collector.look_later(is_in_place=action.where_seen)
    back = _back(site, form.get("back", ""))
    if action.typed and urlsplit(back).path.startswith(_pages_of(site, places)):
        back = site.url("/topics", *([places[0].topic] if places[0].channel else []))
    _return(back, text)


async def _view_for(site: Site, form: Form) -> ClusterView:
    """Return the newest view; look at once for numbers of messages, and for a new broker."""
    view, action = site.collector.view, ACTIONS.get(form.get("action", ""))
    needs_counts = action is not None and action.destroys
    if needs_counts or form.get("broker", "") not in ("", *view.brokers):
        return await site.collector.look_now()
    return view


def _return(back: str, text: str) -> NoReturn:
    joiner = "&" if "?" in back else "?"
    raise web.HTTPSeeOther(f"{back}{joiner}{urlencode({'notice': text[:_MAX_NOTICE]})}")


async def _confirm_operation(
    request: web.Request, operation: PreviewedChange, asked: Asked
) -> web.StreamResponse:
    preview = await operation.preview(asked)
    replaced = {*preview.fields, "typed"}
    given = [each for each in asked.fields.items() if each[0] not in replaced]
    return asked.site.page(
        request,
        "confirm.html",
        {
            "title": preview.title,
            "consequences": preview.lines,
            "typed": preview.typed,
            "fields": [*given, *preview.fields.items()],
            "button": preview.button if preview.is_possible and not preview.obstacle else "",
            "obstacle": preview.obstacle,
            "back": _back(asked.site, asked.fields.get("back", "")),
        },
    )


async def _operate(request: web.Request, operation: PreviewedChange, asked: Asked) -> str:
    """Do an operation, unless something must be typed first. Raises ActionRefused, AdminError."""
    typed = asked.text("typed")
    wanted = (await operation.preview(asked)).typed
    if wanted != typed and wanted:
        raise ActionRefused(f"type {wanted!r} to confirm, and not {typed!r}")
    return await perform_operation(request, asked.fields["action"], operation, asked)


def is_multipart(request: web.Request) -> bool:
    """Whether a request is a form that is read part by part."""
    return request.path.endswith("/act") and request.content_type.startswith("multipart/")


async def _form(request: web.Request) -> Form:
    try:
        async with body_timer(request):
            form = await request.post()
    except (ValueError, LookupError, AssertionError, RuntimeError) as error:  # by the kind of form
        raise ActionRefused(f"the form cannot be read: {error}") from error
    if not all(isinstance(value, str) for value in form.values()):
        raise ActionRefused("an action takes no files")
    return form  # type: ignore[return-value]


async def _perform_all(request: web.Request, places: Sequence[Place], form: Form) -> str:
    """Do an action at each place, whatever comes of the others. Raises AdminError: all failed."""
    texts, errors = [], []
    for place in places:
        try:
            texts.append(await perform(request, form["action"], place, form))
        except AdminError as error:
            errors.append(error)
    if not texts:
        raise errors[0]
    text = texts[-1]
    if others := len(texts) - 1:
        text += f", and so {'was' if others == 1 else 'were'} {counted(others, 'other topic')}"
    if errors:
        text += f", but {counted(len(errors), 'topic')} failed: {errors[0]}"
    return text


def _check_role(request: web.Request) -> None:
    site, user = request.app[SITE], user_of(request)
    if not user.acts:
        why = "this user may not act: see --admin-user and --read-only"
        site.audit.refused(request, user, RefusalReason.ROLE, why)
        raise web.HTTPForbidden(text=why)


def _read(site: Site, view: ClusterView, form: Form) -> tuple[Action, list[Place]]:
    """Return what a form asks for: an action on one topic or channel, or on chosen topics."""
    name = form.get("action", "")
    action = ACTIONS.get(name)
    if action is None:
        raise ActionRefused(f"there is no action {name!r}")
    topics = [form["topic"]] if form.get("topic") else form.getall("topics", [])
    if not topics:
        raise ActionRefused("no topic was chosen: go back and choose some")
    if len(topics) > MAX_CHOSEN:
        raise ActionRefused(f"{len(topics)} topics were chosen; the maximum is {MAX_CHOSEN}")
    channel = form.get("channel", "") if name.endswith(_WITH_CHANNEL) else ""
    needed = [channel] if channel or name.endswith("_channel") else []
    for each in (*topics, *needed):
        if not is_valid_name(each):
            raise ActionRefused(f"{each!r} is no name of a topic or channel, which has {NAME_RULE}")
    broker = form.get("broker", "")
    # Requests carry the operators' token: they go to no address that a form makes up.
    if broker and broker not in view.brokers:
        raise ActionRefused(f"there is no broker {broker!r}")
    if name == "tombstone_topic_producer" and not broker:
        raise ActionRefused("no broker was named that is to be hidden")
    if action.at_daemons and not site.options.lookupd_http_addresses:
        raise ActionRefused("this page asks no lookup daemon: see --lookup")
    return action, [Place(topic, channel, broker) for topic in dict.fromkeys(topics)]


def _typed(view: ClusterView, places: Sequence[Place], action: Action) -> str:
    """Return what must be typed; empty for nothing."""
    if not action.typed and _affected(view, places, action) <= _TYPED_FROM:
        return ""
    return str(places[0]) if len(places) == 1 else f"{len(places)} topics"


def _check_typed(view: ClusterView, action: Action, places: Sequence[Place], form: Form) -> None:
    """Refuse what destroys much, unless the name was typed."""
    wanted, typed = _typed(view, places, action), form.get("typed", "").strip()
    if wanted and typed != wanted:
        count = counted(_affected(view, places, action), "message", form=",")
        raise ActionRefused(
            f"{action.verb} {wanted} removes {count}: type {wanted!r} to confirm, and not {typed!r}"
        )


def _affected(view: ClusterView, places: Sequence[Place], action: Action) -> int:
    """Return how many messages an action would remove."""
    return sum(_waiting(view, place, action) for place in places) if action.destroys else 0


def _waiting(view: ClusterView, place: Place, action: Action) -> int:
    topic = view.topics.get(place.topic)
    if topic is None:
        return 0
    channels: list[ChannelTotals] = []
    count = 0
    if place.channel:
        channels = [topic.channels[place.channel]] if place.channel in topic.channels else []
    else:
        count = sum(each.depth for url, each in topic.nodes.items() if _is_at(place, url))
        channels = list(topic.channels.values()) if action.typed else []
    return count + sum(
        each.depth + each.in_flight_count + each.deferred_count
        for channel in channels
        for url, each in channel.nodes.items()
        if _is_at(place, url)
    )


def _is_at(place: Place, url: str) -> bool:
    return place.broker in ("", url)


def _what(places: Sequence[Place]) -> str:
    return places[0].subject if len(places) == 1 else counted(len(places), "topic")


def _button(view: ClusterView, places: Sequence[Place], action: Action) -> str:
    if places[0].broker:
        where = places[0].broker.partition("://")[2]
    else:
        found = [view.topics[place.topic] for place in places if place.topic in view.topics]
        where = counted(len({url for topic in found for url in topic.nodes}), "broker")
    if action.at_daemons:
        return f"{action.verb} {_what(places)} of {where}"
    if not action.destroys:
        return f"{action.verb} {_what(places)} on {where}"
    count = counted(_affected(view, places, action), "message", form=",")
    if action.typed:
        return f"{action.verb} {_what(places)} with {count} on {where}"
    return f"{action.verb} {count} on {where}"


def _consequences(view: ClusterView, places: Sequence[Place], action: Action) -> list[str]:
    lines = [", ".join(place.topic for place in places)] if len(places) > 1 else []
    if action.at_daemons:
        lines.append(
            "Lookup daemons do not name this broker to consumers of the topic for a while: 45 s,"
            " unless their --tombstone-lifetime says otherwise. A broker that still has the topic"
            " is named again afterwards."
        )
    channels = _channels(view, places) if action.destroys else []
    if action.typed and not places[0].channel and channels:
        count = counted(len(channels), "channel")
        lines.append(f"{count} and all policies are deleted, too; consumers are disconnected.")
    consumers = sum(each.counts.client_count for each in channels)
    if consumers:
        verb = "is" if consumers == 1 else "are"
        lines.append(f"{counted(consumers, 'consumer')} {verb} connected.")
    if action is ACTIONS["empty_channel"]:
        lines.append(
            "What a Martlet broker empties can be put back for a time (--keep-emptied), on the page"
            " of the channel."
        )
    if view.missing:
        missing = ", ".join(each.address for each in view.missing)
        lines.append(
            f"Nothing happens at {missing}: no answer, and messages there are not counted."
        )
    return lines


def _channels(view: ClusterView, places: Sequence[Place]) -> list[ChannelTotals]:
    return [
        channel
        for place in places
        if place.topic in view.topics
        for channel in view.topics[place.topic].channels.values()
        if place.channel in ("", channel.channel)
    ]


def _pages_of(site: Site, places: Sequence[Place]) -> tuple[str, ...]:
    """Return the paths of the pages of places."""
    return tuple(
        site.url("/topics", *(name for name in (place.topic, place.channel) if name))
        for place in places
    )


def _back(site: Site, wanted: str) -> str:
    """Return the page to go back to: one of this site's, whatever a form says."""
    own = site.url("/")
    try:
        parts = urlsplit(wanted)
    except ValueError:
        return own
    if parts.scheme or parts.netloc or "\\" in wanted or not parts.path.startswith(own):
        return own
    if parts.path.startswith("//"):
        return own
    query = "&".join(each for each in parts.query.split("&") if not each.startswith("notice="))
    return parts.path + (f"?{query}" if query else "")
