"""Transactions that have not ended: list, show, commit and roll them back."""

from __future__ import annotations

from dataclasses import replace

from martlet.client.admin.methods import at_each
from martlet.client.admin.operation_group import OperationGroup
from martlet.schema.transactions import COMMIT, LIST, ROLLBACK, SHOW, ListTransactions


class ListedTransactions(ListTransactions, kw_only=True):
    """The parameters of `list`.

    state: only those in this state; all, where it is empty
    group: only those of this group; all, where it is empty
    """

    def __post_init__(self) -> None:
        self.state = self.state or None
        self.group = self.group or None


class TransactionMethods:
    """The methods of both clients."""

    list = at_each(replace(LIST, make=ListedTransactions), lambda answer: answer.transactions)
    show = at_each(SHOW)
    commit = at_each(COMMIT)
    rollback = at_each(ROLLBACK)


class TransactionAdmin(TransactionMethods, OperationGroup):
    """The transactions of brokers: `Admin.transactions`.

    A transaction is at one broker, and the others have an `AdminNotFound` for it. AdminError is
    raised only if no broker answered.
    """
