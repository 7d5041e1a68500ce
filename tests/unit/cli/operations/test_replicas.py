"""`martlet replicas`: its options, and what it shows."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from martlet.cli.operations import replicas
from martlet.cli.operations.replicas import ReplicasOptions, show_lines
from martlet.options.flag import OptionError
from martlet.replica.replica_set import Presence, ReplicaSet, Seen
from martlet.server.metadata.sqlite_store import SqliteStore
from martlet.testing.ports import free_port

ADDRESSES = {"a": "10.0.0.1:4153", "b": "10.0.0.2:4153", "c": "10.0.0.3:4153"}
FOUND = ReplicaSet.first("a", ADDRESSES, broker="id").elected("a").with_in_sync(frozenset("ab"))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"action": "shwo"}, "there is no action 'shwo'; did you mean 'show'"),
        ({"action": "show", "metadata": ""}, "the metadata store is missing: give --metadata"),
        ({"action": "add"}, "add takes one replica, not 0"),
        ({"action": "add", "replicas": ("a", "b")}, "add takes one replica, not 2"),
        ({"action": "show", "replicas": ("a",)}, "show takes no replica, not 1"),
        ({"action": "create"}, "create takes the names of the replicas, not 0"),
        ({"action": "set"}, "set what: give --copies or --min-in-sync"),
        ({"action": "force", "replicas": ("a",)}, "give --accept-loss"),
        ({"action": "remove", "replicas": ("a b",)}, "--replica=a b is not valid"),
    ],
)
def test_wrong_options_are_refused(fields: dict[str, object], why: str) -> None:
    with pytest.raises(OptionError, match=why):
        ReplicasOptions(**({"metadata": "sqlite:x"} | fields))  # type: ignore[arg-type]


def test_a_replica_set_is_shown() -> None:
    presences = {
        "a": Presence(3, 5000, role="primary", began_s=1000, address="10.0.0.1:4153"),
        "b": Presence(3, 4000, role="standby"),
        "d": Presence(role="waiting", address="10.0.0.4:4153", is_whole=False),
    }
    lines = show_lines(Seen(FOUND, 3, presences), {}, 1300)
    assert lines == [
        "broker id: a is primary of epoch 1 for 5m; 2 of 3 in sync, 2 copies of each message, at"
        " least 2 in sync",
        "",
        "REPLICA  ROLE     IN SYNC  EPOCH     LAG  ADDRESS        PROBLEM",
        "a        primary  yes          3       -  10.0.0.1:4153",
        "b        standby  yes          3  1000 B  10.0.0.2:4153",
        "c        -        no           -       -  10.0.0.3:4153  it is not running, still reads"
        " its log, or does not reach the metadata store",
        "d        waiting  no           0       -  10.0.0.4:4153  it is not in the replica set",
    ]


MADE_BY_A = "there is no replica set yet: a, which --initial-replicas names first, makes it"


@pytest.mark.parametrize(
    ("presences", "head"),
    [
        (
            {name: Presence(role="waiting", initial_primary="a=10.0.0.1:4153") for name in "bc"},
            f"{MADE_BY_A}, and it is not running: start it with `martlet broker --replica-name=a"
            " --replica-address=10.0.0.1:4153`, and with --initial-replicas and the further flags"
            " of the others",
        ),
        (
            {
                "a": Presence(role="waiting"),
                "b": Presence(role="waiting", initial_primary="a=10.0.0.1:4153"),
            },
            f"{MADE_BY_A}, but it runs without that flag: start it again with the"
            " --initial-replicas of the others, or give `martlet replicas create a NAME ...`",
        ),
        (
            {name: Presence(role="waiting", initial_primary="a=10.0.0.1:4153") for name in "ab"},
            MADE_BY_A,
        ),
        (
            {"b": Presence(role="waiting")},
            "there is no replica set yet: create one with `martlet replicas create NAME NAME ...`",
        ),
    ],
)
def test_the_replica_that_is_to_make_the_set_is_named(
    presences: dict[str, Presence], head: str
) -> None:
    """`martlet replicas create` would leave it out."""
    said = {name: replace(presence, problem=head) for name, presence in presences.items()}
    first, *_, last = show_lines(Seen(None, 0, said), {}, 1300)
    assert first == head
    assert "waiting" in last
    assert "there is no replica set" not in last, "it is said once"


def test_a_replica_that_is_out_of_sync_says_why() -> None:
    lines = show_lines(Seen(FOUND, 3, {"c": Presence(3, 4000, role="standby")}), {}, 1300)
    assert lines[-1].endswith(
        "the primary does not hear from it, or waits until it has the whole log"
    )


def test_a_replica_that_waits_for_its_set_does_not_listen_yet_and_runs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "replicas.db"
    path.touch()
    waiting = Presence(role="waiting", address=f"127.0.0.1:{free_port()}", is_whole=False)

    async def write() -> None:
        store = SqliteStore(path, "martlet")
        await store.announce("b", waiting)
        await store.close()

    asyncio.run(write())
    assert replicas.main(["show", f"--metadata=sqlite:{path}"]) == 0
    shown = capfd.readouterr().out
    assert "b        waiting" in shown
    assert waiting.address in shown
    assert "listens" not in shown


def test_a_removal_that_was_begun_and_not_finished_is_shown() -> None:
    presences = {"c": Presence(3, 4000, role="standby")}
    lines = show_lines(Seen(FOUND.with_leaving("c"), 3, presences), {}, 1300)
    assert lines[-1].endswith(
        "its removal was begun: finish it with `martlet replicas remove c`, or keep it with"
        " `martlet replicas add c`"
    )


REFUSES = "warning: the loss of any one replica makes the broker refuse messages: add one, or"


@pytest.mark.parametrize(
    ("copies", "least", "in_sync", "said"),
    [
        (2, 1, "abc", ["set; 3 replicas, 2 copies, at least 2 -> 1 in sync"]),
        (2, 2, "abc", ["set; 3 replicas, 2 copies, at least 2 in sync"]),
        (
            3,
            3,
            "abc",
            [
                "set; 3 replicas, 2 -> 3 copies, at least 2 -> 3 in sync",
                f"{REFUSES} `martlet replicas set --min-in-sync=2`",
            ],
        ),
        (
            2,
            2,
            "ab",
            [
                "set; 3 replicas, 2 copies, at least 2 in sync",
                "warning: until another replica than a, b is in sync, the loss of one of them"
                " makes the broker refuse messages",
            ],
        ),
        (
            2,
            1,
            "a",
            [
                "set; 3 replicas, 2 copies, at least 2 -> 1 in sync",
                "warning: a alone is in sync: until another one is, its loss stops the broker, and"
                " may lose messages",
            ],
        ),
        (
            2,
            2,
            "a",
            [
                "set; 3 replicas, 2 copies, at least 2 in sync",
                "warning: messages are refused until 2 replicas are in sync, now it is a",
            ],
        ),
    ],
)
def test_a_change_says_what_changes_and_when_messages_are_refused(
    copies: int, least: int, in_sync: str, said: list[str]
) -> None:
    after = replace(FOUND, wanted_copies=copies, min_in_sync=least)
    after = after.with_in_sync(frozenset(in_sync))
    assert replicas.changed_lines("set", FOUND, after) == said


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            "a",
            [
                "a becomes the primary; 1 replica, 1 copy, at least 1 in sync",
                "warning: a is the only replica: its loss stops the broker, and may lose messages;"
                " add another one with `martlet replicas add`",
            ],
        ),
        (
            "abc",
            [
                "a becomes the primary, and takes messages alone: once others are in sync, give"
                " `martlet replicas set --min-in-sync=2`; 3 replicas, 2 copies, at least 2 -> 1 in"
                " sync",
                "warning: a alone is in sync: until another one is, its loss stops the broker, and"
                " may lose messages",
            ],
        ),
    ],
)
def test_a_forced_primary_says_what_is_left_to_do(
    names: str, said: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "replicas.db"
    before = ReplicaSet.first("a", {name: ADDRESSES[name] for name in names}, broker="id")
    before = before.elected("a").with_in_sync(frozenset(names))

    async def write() -> None:
        store = SqliteStore(path, "martlet")
        assert await store.swap(before, 0)
        await store.announce("a", Presence(1, role="standby", broker="id"))
        await store.close()

    asyncio.run(write())
    assert replicas.main(["force", "a", "--accept-loss", f"--metadata=sqlite:{path}"]) == 0
    assert capfd.readouterr().out.splitlines() == said


def test_a_replica_more_changes_what_a_majority_is() -> None:
    added = FOUND.with_in_sync(frozenset("abc")).with_replica("d", "10.0.0.4:4153")
    added = replace(added, wanted_copies=3, min_in_sync=3)
    assert replicas.changed_lines("added d", FOUND, added) == [
        "added d; 3 -> 4 replicas, 2 -> 3 copies, at least 2 -> 3 in sync",
        "warning: until another replica than a, b, c is in sync, the loss of one of them makes the"
        " broker refuse messages",
    ]


def test_a_replica_less_says_that_messages_are_refused_where_they_are() -> None:
    before = FOUND.with_in_sync(frozenset("a"))
    after = replace(before.without_replica("b"), min_in_sync=2)
    assert replicas.changed_lines("removed b", before, after) == [
        "removed b; 3 -> 2 replicas, 2 copies, at least 2 in sync",
        "warning: messages are refused until 2 replicas are in sync, now it is a",
    ]


def test_the_sets_that_there_are_are_named_where_another_one_is_asked_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "replicas.db"

    async def write() -> None:
        store = SqliteStore(path, "broker-0")
        await store.swap(FOUND, 0)
        await store.close()

    asyncio.run(write())
    assert replicas.main(["show", f"--metadata=sqlite:{path}", "--replica-set=WRONG"]) == 1
    assert "there is no replica set WRONG; there is broker-0" in capfd.readouterr().err


def test_a_replica_that_was_just_killed_is_not_shown_as_in_sync(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its presence lasts for 3 s, and the set has it in sync until the primary misses it."""
    path = tmp_path / "replicas.db"
    with socket.create_server(("127.0.0.1", 0)) as alive, socket.socket() as killed:
        killed.bind(("127.0.0.1", 0))  # Nothing listens there.
        addresses = {
            name: f"127.0.0.1:{replica.getsockname()[1]}"
            for name, replica in (("a", alive), ("b", killed))
        }

        async def write() -> None:
            store = SqliteStore(path, "martlet")
            replica_set = ReplicaSet.first("a", addresses, broker="id").elected("a")
            assert await store.swap(replica_set.with_in_sync(frozenset("ab")), 0)
            for name, role in (("a", "primary"), ("b", "standby")):
                await store.announce(
                    name, Presence(1, role=role, address=addresses[name], broker="id")
                )
            await store.close()

        asyncio.run(write())
        assert replicas.main(["show", f"--metadata=sqlite:{path}"]) == 0
    shown = capfd.readouterr().out
    assert "2 of 2 in sync (b not reachable), 2 copies of each message" in shown
    why = f"nothing listens at {addresses['b']}: it is just starting, or has just ended"
    assert re.search(f"b +standby +not reachable .* {why}", shown)
    assert re.search("a +primary +yes ", shown)


def written(path: Path, *names: str) -> None:
    async def write() -> None:
        for name in names:
            store = SqliteStore(path, name)
            assert await store.swap(FOUND, 0)
            await store.close()

    asyncio.run(write())


def test_the_only_set_of_a_store_needs_no_name(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "replicas.db"
    written(path, "broker-0")
    assert replicas.main(["show", f"--metadata=sqlite:{path}", "--json"]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert (shown["primary"], shown["epoch"]) == ("a", 1)
    assert shown["replicas"][2] == {
        "replica": "c",
        "address": "10.0.0.3:4153",
        "is_member": True,
        "is_in_sync": False,
        "is_running": False,
    }
    written(path, "broker-1")
    assert replicas.main([f"--metadata=sqlite:{path}"]) == 1
    assert "there are several replica sets, broker-0, broker-1" in capfd.readouterr().err
    assert replicas.main([f"--metadata=sqlite:{path}", "--replica-set=broker-1"]) == 0


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ("sqlite:missing.db", "there is no such file: give the path that the replicas"),
        ("zookeeper:10.0.0.1:2181", "is no metadata store: it is etcd:HOST:PORT"),
        ("etcd:127.0.0.1:1", "etcd did not answer"),
    ],
)
def test_a_store_that_is_not_there_is_named(
    metadata: str, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert replicas.main(["show", f"--metadata={metadata}"]) == 1
    assert why in capfd.readouterr().err


def test_replicas_that_do_not_run_cannot_make_a_set(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "replicas.db"
    path.touch()
    arguments = ["create", "a", "b", f"--metadata=sqlite:{path}", "--timeout=200ms"]
    assert replicas.main(arguments) == 1
    assert (
        "a, b are not running in this replica set: start each with `martlet broker"
        in capfd.readouterr().err
    )
