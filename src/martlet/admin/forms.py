"""The pages around actions: ``/act``, which does one, and ``/confirm``, which asks before.

A form posts to ``/act`` with the name of the action. An action that destroys something goes through
``/confirm`` first: a page that says what will happen, with numbers that were read for it, and that
wants a name typed where much is at stake.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode, urlsplit

from aiohttp import web

from martlet.admin.actions import TOPIC_ACTIONS, Action, perform
from martlet.admin.audit import RefusalReason
from martlet.admin.guard import user_of
from martlet.admin.inputs import ActionRefused, Form, Inputs
from martlet.admin.pages import (
    dead_letters,
    delayed,
    groups,
    message,
    restoring,
    settings,
    transactions,
)
from martlet.admin.site import SITE, Site
from martlet.http_connection import body_timer

ACTIONS: Mapping[str, Action] = {
    **TOPIC_ACTIONS,
    **message.ACTIONS,
    **restoring.ACTIONS,
    **dead_letters.ACTIONS,
    **delayed.ACTIONS,
    **groups.ACTIONS,
    **transactions.ACTIONS,
    **settings.ACTIONS,
}
"""All actions, by the names that forms send."""
_MAX_NOTICE = 1000


async def confirm(request: web.Request) -> web.StreamResponse:
    """``/confirm``: what an action will do, before it is done."""
    site, query = request.app[SITE], request.query
    _check_role(request)
    view = await site.collector.look_now()
    _, action = _action(query)
    preview = await action.preview(Inputs(site, view, query))
    replaced = {*preview.fields, "typed"}
    given = [each for each in query.items() if each[0] not in replaced]
    return site.page(
        request,
        "confirm.html",
        {
            "title": preview.title,
            "consequences": preview.lines,
            "typed": preview.typed,
            "fields": [*given, *preview.fields.items()],
            "button": preview.button if preview.is_possible and not preview.obstacle else "",
            "obstacle": preview.obstacle,
            "back": _back(site, query.get("back", "")),
        },
    )


async def act(request: web.Request) -> web.StreamResponse:
    """``/act``: do what a form says, and go back to its page."""
    site = request.app[SITE]
    form = await _form(request)
    _check_role(request)
    name, action = _action(form)
    view = site.collector.view
    if action.counts or form.get("broker", "") not in ("", *view.brokers):
        view = await site.collector.look_now()
    inputs = Inputs(site, view, form, user_of(request).name)
    parts = action.split(inputs)
    if action.is_confirmed:
        preview, typed = await action.preview(inputs), inputs.text("typed")
        if preview.typed and typed != preview.typed:
            raise ActionRefused(
                f"{preview.button}: type {preview.typed!r} to confirm, and not {typed!r}"
            )
    text = await perform(request, name, action, parts)
    site.collector.look_later(is_in_place=action.is_in_place)
    back = _back(site, form.get("back", ""))
    if action.deletes and urlsplit(back).path.startswith(tuple(map(_page_of, parts))):
        back = site.url("/topics", *([parts[0].text("topic")] if parts[0].text("channel") else []))
    joiner = "&" if "?" in back else "?"
    raise web.HTTPSeeOther(f"{back}{joiner}{urlencode({'notice': text[:_MAX_NOTICE]})}")


def _action(fields: Form) -> tuple[str, Action]:
    """Return the action that a form names."""
    name = fields.get("action", "")
    if name not in ACTIONS:
        raise ActionRefused(f"there is no action {name!r}")
    return name, ACTIONS[name]


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


def _check_role(request: web.Request) -> None:
    site, user = request.app[SITE], user_of(request)
    if not user.acts:
        why = "this user may not act: see --admin-user and --read-only"
        site.audit.refused(request, user, RefusalReason.ROLE, why)
        raise web.HTTPForbidden(text=why)


def _page_of(inputs: Inputs) -> str:
    """Return the path of the page of a topic or channel."""
    names = inputs.text("topic"), inputs.text("channel")
    return inputs.site.url("/topics", *filter(None, names))


def _back(site: Site, wanted: str) -> str:
    """Return the page to go back to: one of this site's, whatever a form says."""
    own = f"{site.prefix}/"
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
