"""The pages of what only Martlet has: messages, dead letters, delayed messages, jobs and more.

None is live: each asks brokers once, within limits that it shows.
"""

from collections.abc import Mapping

from martlet.console.actions import TOPIC_ACTIONS, Action
from martlet.console.guard import Handler
from martlet.console.pages import (
    dead_letters,
    delayed,
    groups,
    jobs,
    message,
    messages,
    settings,
    transactions,
)
from martlet.names import ID_PATTERN

PAGES: dict[str, Handler] = {
    "/messages": messages.messages,
    "/messages/export": messages.export,
    f"/messages/{{id:{ID_PATTERN}}}": message.message,
    f"/messages/{{id:{ID_PATTERN}}}/body": message.download,
    "/dead": dead_letters.overview,
    "/dead/letters": dead_letters.letters,
    "/dead/export": dead_letters.export,
    "/delayed": delayed.overview,
    "/groups": groups.overview,
    "/groups/{topic}/{group}": groups.group,
    "/transactions": transactions.overview,
    "/transactions/{id}": transactions.transaction,
    "/jobs": jobs.jobs,
    "/jobs/{number:[0-9]+}/{name}": jobs.job,
    "/settings": settings.settings,
}
"""The handler of each path."""
ACTIONS: Mapping[str, Action] = {
    **TOPIC_ACTIONS,
    **message.ACTIONS,
    **dead_letters.ACTIONS,
    **delayed.ACTIONS,
    **groups.ACTIONS,
    **transactions.ACTIONS,
    **settings.ACTIONS,
}
