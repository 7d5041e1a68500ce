"""The errors of `Admin`: a server does not answer, or refuses."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Self

from martlet.client.errors import ClientError


class AdminError(ClientError):
    """A broker or lookup daemon did not answer or refused; the text names it and the reason.

    Attributes:
        url: of the server.
        why: the text without the URL.
        status: the HTTP status of its answer; 0 if there was none, or none of such a server.
        code: a broker's word in capitals for a refusal, such as ``CONFLICT``; else empty.
        errors: where no broker answered, the error of each by its URL.
    """

    def __init__(
        self,
        url: str,
        why: str,
        status: int = 0,
        code: str = "",
        errors: Mapping[str, AdminError] | None = None,
    ) -> None:
        super().__init__(f"{url}: {why}")
        self.url = url
        self.why = why
        self.status = status
        self.code = code
        self.errors = errors or {}

    def replace(
        self, why: str | None = None, errors: Mapping[str, AdminError] | None = None
    ) -> Self:
        """Return a copy with another text, or with the errors of all brokers."""
        text = self.why if why is None else why
        return type(self)(self.url, text, self.status, self.code, errors or self.errors)


class AdminUnreachable(AdminError):
    """No connection to a broker or lookup daemon could be made."""

    def __str__(self) -> str:
        return f"cannot connect to {self.url}: {self.why}"


class AdminNotFound(AdminError):
    """The broker has no such topic, channel, group, message or transaction (status 404)."""


def refusal(url: str, why: str, status: int, code: str = "") -> AdminError:
    """Return the error of an answer with a status other than 200."""
    kind = AdminNotFound if status == HTTPStatus.NOT_FOUND else AdminError
    return kind(url, why, status, code)
