"""All operations, by the names that forms send."""

from collections.abc import Mapping

from martlet.admin.operations import PreviewedChange
from martlet.admin.pages import (
    dead_letters,
    delayed,
    groups,
    message,
    restoring,
    settings,
    transactions,
)

OPERATIONS: Mapping[str, PreviewedChange] = {
    **message.OPERATIONS,
    **restoring.OPERATIONS,
    **dead_letters.OPERATIONS,
    **delayed.OPERATIONS,
    **groups.OPERATIONS,
    **transactions.OPERATIONS,
    **settings.OPERATIONS,
}
