"""The handler of each kind of command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from martlet.protocol.nsq import v2

if TYPE_CHECKING:
    from collections.abc import Mapping

    from martlet.server.nsq.acks import AckCommands
    from martlet.server.nsq.calls import CallCommand
    from martlet.server.nsq.connection import Handler
    from martlet.server.nsq.handshake import SessionCommands
    from martlet.server.nsq.publish import PublishCommands


def command_handlers(
    session: SessionCommands, publish: PublishCommands, acks: AckCommands, call: CallCommand
) -> Mapping[type, Handler]:
    """Return the handler of each command by the command's class."""
    return {
        v2.IdentifyCommand: session.identify,
        v2.Auth: session.authenticate,
        v2.Subscribe: session.subscribe,
        v2.Ready: session.ready,
        v2.Close: session.close,
        v2.Nop: session.do_nothing,
        v2.PublishCommand: publish.publish,
        v2.SendCommand: publish.send,
        v2.FinishRun: acks.finish_run,
        v2.Finish: acks.finish,
        v2.RequeueCommand: acks.requeue,
        v2.Touch: acks.touch,
        v2.StartedCommand: acks.started,
        v2.Call: call.call,
    }
