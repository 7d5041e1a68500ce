"""Undo of an empty: put back what was emptied from a channel."""

from __future__ import annotations

import time

from martlet.admin import shown
from martlet.admin.actions import Action, Preview, with_failures
from martlet.admin.inputs import ActionRefused, Inputs
from martlet.admin.undos import Undo
from martlet.text import counted


def _undo(inputs: Inputs) -> Undo:
    found = inputs.site.undos.get(inputs.number("undo"))
    if found is None or (found.topic, found.channel) != (
        inputs.name("topic"),
        inputs.name("channel"),
    ):
        raise ActionRefused("that was undone already, or too much was emptied since")
    return found


async def _preview(inputs: Inputs) -> Preview:
    undo = _undo(inputs)
    some = counted(undo.message_count, "message", form=",")
    lines = [
        f"They were emptied {shown.ago(undo.at_s)}. Consumers get them again, and with them what"
        " they have received since then."
    ]
    if undo.until_s < time.time():
        lines.append("Brokers have kept them until now without fail; some may be gone.")
    return Preview(
        title=f"Put {some} back into channel {undo.channel} of {undo.topic}",
        button=f"Put back {some}",
        lines=lines,
    )


async def _restore(inputs: Inputs) -> str:
    undo = _undo(inputs)
    undos, left = inputs.site.undos, set(undo.emptied)
    undos.remove(undo)
    try:
        answers = await inputs.site.admin.channels.restore(undo.topic, undo.channel, undo.emptied)
        left = set(answers.failures)
    finally:
        undos.keep(undo, left)
    count = sum(undo.emptied[url].depth for url in answers.values)
    verb = "was" if count == 1 else "were"
    text = f"{counted(count, 'message', form=',')} {verb} put back"
    waiting = counted(sum(answers.values.values()), "message", form=",")
    return with_failures(
        f"{text} into channel {undo.channel} of {undo.topic}, which has {waiting} now", answers
    )


ACTIONS = {"restore_channel": Action(_preview, _restore)}
