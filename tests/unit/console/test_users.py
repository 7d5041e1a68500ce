"""Users of the admin page: how it knows them, and what each may do."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from martlet.console.guard import NotAuthenticated, Role, Users
from martlet.options.admin import AdminOptions

LOCAL, REMOTE = "127.0.0.1", "10.1.2.3"

NO_PASSWORDS = ("Basic", "Basic \u00e9", "Basic \udcff", "Basic !", "Basic ???", "Bearer secret")


def users(**options: Any) -> Users:
    return Users(AdminOptions(nsqd_http_addresses=("127.0.0.1:4151",), **options))


def basic(name: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


def named(name: str) -> dict[str, str]:
    return {"X-Forwarded-User": name}


@pytest.mark.parametrize(
    ("options", "address", "headers", "role"),
    [
        ({}, LOCAL, {}, Role.ACTS),
        ({"http_address": "0.0.0.0:4171"}, REMOTE, {}, Role.NUMBERS),
        ({"http_address": "0.0.0.0:4171"}, LOCAL, {}, Role.NUMBERS),
        ({}, LOCAL, {"X-Forwarded-For": REMOTE}, Role.NUMBERS),
        ({}, LOCAL, {"Forwarded": f"for={REMOTE}"}, Role.NUMBERS),
        ({"allow_anonymous_admin": True}, LOCAL, {"X-Forwarded-For": REMOTE}, Role.ACTS),
        (
            {"http_address": "0.0.0.0:4171", "allow_anonymous_admin": True},
            REMOTE,
            {},
            Role.ACTS,
        ),
        ({"read_only": True}, LOCAL, {}, Role.BODIES),
        ({"admin_users": ("ann",)}, LOCAL, {}, Role.NUMBERS),
        ({"admin_users": ("ann",)}, LOCAL, named("ann"), Role.ACTS),
        ({"admin_users": ("ann",)}, "::1", named("ann"), Role.ACTS),
        ({"admin_users": ("ann",)}, "::ffff:127.0.0.1", named("ann"), Role.ACTS),
        ({"admin_users": ("ann",)}, LOCAL, named("bob"), Role.NUMBERS),
        ({"admin_users": ("ann",), "reader_users": ("bob",)}, LOCAL, named("bob"), Role.BODIES),
        ({"admin_users": ("ann",)}, REMOTE, named("ann"), Role.NUMBERS),
        (
            {"admin_users": ("ann",), "trusted_proxies": ("10.1.0.0/16",)},
            REMOTE,
            named("ann"),
            Role.ACTS,
        ),
        ({"admin_users": ("ann",), "read_only": True}, LOCAL, named("ann"), Role.BODIES),
    ],
)
async def test_what_a_user_may_do(
    options: dict[str, Any], address: str, headers: dict[str, str], role: Role
) -> None:
    assert (await users(**options).of(headers, address)).role is role


async def test_a_name_from_an_address_that_is_no_proxy_does_not_count() -> None:
    user = await users(trusted_proxies=("10.9.0.0/16",)).of(named("ann"), REMOTE)
    assert (user.name, user.forged) == ("", "ann")
    assert (await users().of(named("ann"), LOCAL)).forged == ""


async def test_bodies_are_hidden_from_all_users() -> None:
    user = await users(bodies=False).of({}, LOCAL)
    assert user.acts
    assert not user.sees_bodies
    assert (await users().of({}, LOCAL)).sees_bodies


async def test_users_of_a_file_need_their_passwords(passwords: str) -> None:
    all_users = users(htpasswd_file=passwords, http_address="0.0.0.0:4171")
    for _ in range(2):
        user = await all_users.of(basic("ann", "secret"), REMOTE)
        assert (user.name, user.role) == ("ann", Role.ACTS)
    assert (await all_users.of(basic("bob", "x" * 100), REMOTE)).name == "bob"
    for wrong in (
        {},
        basic("ann", "Secret"),
        basic("eve", "secret"),
        basic("", ""),
        named("ann"),
        *({"Authorization": text} for text in NO_PASSWORDS),
    ):
        with pytest.raises(NotAuthenticated):
            await all_users.of(wrong, LOCAL)


async def test_only_named_users_of_a_file_act(passwords: str) -> None:
    all_users = users(htpasswd_file=passwords, admin_users=("ann",))
    assert (await all_users.of(basic("ann", "secret"), LOCAL)).acts
    assert (await all_users.of(basic("bob", "x" * 100), LOCAL)).role is Role.NUMBERS


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "cannot be read: No such file"),
        ("", "has no users"),
        ("ann:$apr1$abc$def\n", "line 1: 'ann' has no bcrypt password; make one with htpasswd -B"),
    ],
)
def test_a_file_of_passwords_that_cannot_be_used_is_named(
    tmp_path: Path, text: str | None, why: str
) -> None:
    file = tmp_path / "htpasswd"
    if text is not None:
        file.write_text(text)
    with pytest.raises(OSError, match=r"--htpasswd-file=.*htpasswd") as caught:
        users(htpasswd_file=str(file))
    assert why in str(caught.value)
