"""The handler of each kind of command.

A command that may change topics or channels is answered once the flush mode's promise holds for
that, unless it is one of `AT_ONCE`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from martlet.protocol.nsq import v2

if TYPE_CHECKING:
    from collections.abc import Mapping

    from martlet.server.nsq.calls import CallCommand
    from martlet.server.nsq.client_io import Outcome
    from martlet.server.nsq.connection import ClientConnection, Handler
    from martlet.server.nsq.handshake import SessionCommands
    from martlet.server.nsq.publish import PublishCommands
    from martlet.server.nsq.subscription import AckCommands

AT_ONCE = frozenset(
    {
        # They change only what goes with the connection, or, as acknowledgements, have no answer.
        *(v2.IdentifyCommand, v2.Auth, v2.Ready, v2.Close, v2.Nop),
        *(v2.FinishRun, v2.Finish, v2.RequeueCommand, v2.Touch, v2.StartedCommand),
        # Their answers wait for the messages' receipts, and for what `rpc.registry` says.
        *(v2.PublishCommand, v2.SendCommand, v2.Call),
    }
)
_VERBS: Mapping[type, str] = {v2.Subscribe: "SUB"}


def command_handlers(
    session: SessionCommands, publish: PublishCommands, acks: AckCommands, call: CallCommand
) -> Mapping[type, Handler]:
    """Return the handler of each command by the command's class."""
    handlers: dict[type, Handler] = {
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
    return {
        kind: handler if kind in AT_ONCE else settled(kind, handler)
        for kind, handler in handlers.items()
    }


def settled(kind: type, handler: Handler) -> Handler:
    """Return a handler whose answers wait until the flush mode's promise holds."""
    verb = _VERBS.get(kind, kind.__name__.upper())

    def handle(connection: ClientConnection, command: Any) -> Outcome:
        return connection.replies.settle_change(verb, partial(handler, connection, command))

    return handle
