"""Two processes of one name: the one that the document names is the replica, and no other."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest
from tests.unit.replica.test_primary import FakeLink, Host
from tests.unit.replica.test_replica import ALL, FIRST, FakeHost, primary

from martlet.replica.candidate import Candidate
from martlet.replica.frames import FrameKind, ReplicaGreeting
from martlet.replica.note import NAME, NO_LIFE, Life, ReplicaNote
from martlet.replica.primary import SECOND_NS, Primary
from martlet.replica.replica_set import Presence, ReplicaSet, Seen
from martlet.replica.standby import Standby
from martlet.testing import SimulatedStorage


def claim(host: FakeHost, document: ReplicaSet, version: int) -> tuple[ReplicaSet, int]:
    """Let a process claim its name in a document. Returns the document after that."""
    host.polls(document, version)
    swapped, of_version = host.swaps.pop()
    assert of_version == version
    host.wins(swapped, version + 1)
    assert host.replica.is_member
    return swapped, version + 1


def copy_of(host: FakeHost) -> SimulatedStorage:
    copied = host.storage.crash()
    host.storage._dead = None
    return copied


def test_a_process_claims_its_name_before_it_does_anything_else() -> None:
    host = FakeHost("b")
    host.address = "10.0.0.9:4153"
    host.polls(ALL)
    host.wait(0)
    ((swapped, version),) = host.swaps
    assert (swapped.instance_of("b"), swapped.replicas["b"]) == (host.instance, "10.0.0.9:4153")
    assert (version, host.connects) == (1, [])
    assert host.replica.note.pledged == 0
    host.polls(ALL)
    assert len(host.swaps) == 1, "one claim at a time"
    host.replica.swap_unclear(swapped, 0)
    host.polls(ALL)
    host.replica.swapped(host.swaps[-1][0], 2, 0)
    host.polls(host.swaps[-1][0], 2)
    host.wait(0)
    assert len(host.connects) == 1


def test_a_process_that_was_replaced_stands_down_for_good() -> None:
    old, new = FakeHost("b"), FakeHost("b")
    document, version = claim(old, ALL, 1)
    old.wait(0)
    link = FakeLink()
    old.replica.connected(old.connects[0][0], link, 0)
    document, version = claim(new, document, version)
    old.polls(document, version)
    assert link.is_closed
    assert (old.replica.is_replaced, old.replica.role_name) == (True, "waiting")
    assert "stands down for good" in old.replica.problem
    elected = document.elected("b")
    for seen in (elected, replace(elected, lives={}), ALL):
        old.polls(seen, version + 1)
        old.wait(3)
        assert old.replica.is_replaced
    assert (len(old.connects), old.swaps) == (1, [])
    assert isinstance(old.replica.role, Standby)
    again = FakeHost("b", old.storage.crash())
    again.polls(document, version)
    assert again.replica.is_replaced
    assert again.swaps == []


def test_a_primary_that_was_replaced_stands_down() -> None:
    old, new = FakeHost("a"), FakeHost("a")
    document, version = claim(old, FIRST, 1)
    swapped = old.elects()
    old.wins(swapped, version + 1)
    assert isinstance(old.replica.role, Primary)
    grown = swapped.with_in_sync(frozenset("abc"))
    document, version = claim(new, grown, version + 1)
    assert isinstance(new.replica.role, Standby), "the epoch is that of the other process"
    old.polls(document, version)
    assert (old.replica.is_replaced, old.replica.primary) == (True, None)


def test_an_epoch_is_begun_by_the_process_that_was_elected() -> None:
    storage = primary().storage.crash()
    won = FakeHost("a", storage)
    document, version = claim(won, ALL, 1)
    elected = document.elected("a")
    copied = FakeHost("a", copy_of(won))
    named, version = claim(copied, elected, version + 1)
    assert copied.replica.note.is_whole
    assert (named.epoch, named.primary) == (2, "a")
    assert isinstance(copied.replica.role, Standby)
    won.replica._won_epoch = 2
    won.polls(elected, version - 1)
    assert isinstance(won.replica.role, Candidate)


def test_a_restart_goes_on_as_the_same_replica() -> None:
    host = FakeHost("b", primary_folder())
    document, version = claim(host, ALL, 1)
    incarnation = host.replica.note.life.incarnation
    again = FakeHost("b", host.storage.crash())
    document, version = claim(again, document, version)
    assert again.replica.note.is_whole
    assert document.lives["b"] == again.replica.note.life
    assert (document.lives["b"].incarnation, document.lives["b"].number) == (incarnation, 2)


def test_a_claim_without_an_answer_is_known_to_be_of_this_folder() -> None:
    """Also where a further start saw an older document first."""
    host = FakeHost("b", primary_folder())
    document, version = claim(host, ALL, 1)
    second = FakeHost("b", host.storage.crash())
    second.polls(document, version)
    ((applied, _),) = second.swaps
    third = FakeHost("b", second.storage.crash())
    third.polls(document, version)
    third.replica.swapped(third.swaps.pop()[0], None, 0)
    claim(third, applied, version + 1)
    assert third.replica.note.is_whole
    assert third.replica.note.runs == ()


@pytest.mark.parametrize("is_copy", [False, True])
def test_a_new_folder_does_not_replace_the_only_replica_that_has_some_messages(
    is_copy: bool,
) -> None:
    host = FakeHost("a", primary().storage.crash())
    document, version = claim(host, ALL, 1)
    alone = document.with_in_sync(frozenset("a"))
    copied = FakeHost("a", copy_of(host) if is_copy else None, is_copied=is_copy)
    copied.polls(alone, version + 1)
    assert copied.swaps == []
    assert "may have messages that no other replica has" in copied.replica.problem
    again = FakeHost("a", copied.storage.crash())
    again.polls(alone, version + 1)
    assert again.swaps == [], "nor at a further start"
    claim(again, alone.forced("b"), version + 2)
    same = FakeHost("a", host.storage.crash())
    claim(same, alone, version + 1)
    assert same.replica.note.is_whole


def test_a_process_that_an_operator_named_is_known_to_be_of_this_folder() -> None:
    host = FakeHost("b", primary_folder())
    presence = replace(host.replica.presence(0), instance=host.instance)
    named = ALL.named({"b": presence})
    again = FakeHost("b", host.storage.crash())
    claim(again, named, 1)
    assert again.replica.note.is_whole


def test_a_folder_whose_copy_was_the_replica_meanwhile_does_not_count() -> None:
    host = FakeHost("b", primary_folder())
    document, version = claim(host, ALL, 1)
    copied = FakeHost("b", copy_of(host))
    document, version = claim(copied, document, version)
    host.polls(document, version)
    assert host.replica.is_replaced
    again = FakeHost("b", host.storage.crash())
    claim(again, document, version)
    assert not again.replica.note.is_whole
    assert not again.standby.is_whole


def primary_folder() -> SimulatedStorage:
    """The folder of a standby that has all of the log."""
    storage = primary().storage.crash()
    note = ReplicaNote.load(storage)
    replace(note, replica="b", life=NO_LIFE, runs=()).save(storage)
    return storage


@pytest.mark.parametrize("instance", ["", "another process"])
def test_a_primary_takes_no_greeting_of_a_process_that_is_not_the_replica(instance: str) -> None:
    host = primary()
    role = host.leading
    role.replica_set = role.replica_set.claimed("b", Life(9, "process", "folder"), "address")
    link = host.greeted("b", instance=instance)
    assert (link.kinds, link.is_closed) == ([FrameKind.FENCED], True)
    assert role.standbys == {}
    assert host.greeted("b", instance="process").kinds == [FrameKind.WELCOME]


def test_nor_of_one_whose_claim_it_has_not_read() -> None:
    """Another process may have claimed the name since."""
    host = primary()
    link = host.greeted("b", instance="process")
    assert (link.is_closed, host.leading.standbys) == (True, {})


def test_what_a_replaced_process_acknowledged_counts_no_more() -> None:
    host = Host("abc", "abc", min_in_sync=2)
    host.join("b")
    host.acknowledge("b", host.log.position)
    before = host.confirmed_position
    claimed = host.primary.replica_set.claimed("b", Life(9, "new", "folder"), "address")
    host.polled(claimed, 8)
    assert host.links["b"].is_closed
    host.append()
    host.wait(0)
    assert (host.confirmed_position, host.primary.standbys) == (before, {})


def test_a_candidate_drops_the_answer_of_a_process_that_was_replaced() -> None:
    host = FakeHost("a", primary().storage.crash())
    document, version = claim(host, ALL, 1)
    host.replica._won_epoch = 2
    host.polls(document.elected("a"), version + 1)
    role = host.replica.role
    assert isinstance(role, Candidate)
    link = FakeLink()
    role.answers["b"] = (link, ReplicaGreeting("id", "b", [], [], instance="old"))
    claimed = role.replica_set.claimed("b", Life(9, "new", "folder"), "address")
    host.polls(claimed, version + 2)
    assert (link.is_closed, role.answers) == (True, {})


@pytest.mark.parametrize("has_sent", [True, False])
def test_a_primary_that_had_hung_confirms_alone_only_once_it_has_read_the_document(
    has_sent: bool,
) -> None:
    """The answer to a poll from before lies in a socket meanwhile, and may be read first."""
    host = Host("ab", "a", min_in_sync=1)
    host.primary.send(host.now_ns)
    before = host.confirmed_position
    began_ns = host.now_ns
    host.now_ns += 3 * SECOND_NS
    end = host.append()
    if has_sent:
        host.primary.send(host.now_ns)
        host.primary.flushed(host.now_ns)
    host.primary.polled(Seen(host.primary.replica_set, 8, {}), began_ns, host.now_ns)
    assert (host.confirmed_position, host.primary.is_waking) == (before, True)
    host.polled(host.primary.replica_set, 8)
    assert host.confirmed_position == end


def test_a_swap_that_was_answered_while_the_primary_hung_does_not_count() -> None:
    host = Host("ab", "ab", min_in_sync=1)
    host.wait(0)
    host.wait(3)
    ((swapped, version),) = host.swaps
    assert swapped.copies == 1
    host.now_ns += 3 * SECOND_NS
    host.primary.swapped(swapped, version + 1, host.now_ns)
    assert (host.confirmed_position, host.primary.is_waking) == (0, True)
    host.polled(swapped, version + 1)
    assert host.confirmed_position == host.log.position


def test_a_replica_that_hung_before_its_epoch_confirms_alone_only_once_it_has_polled() -> None:
    host = FakeHost("a")
    _, version = claim(host, replace(FIRST, min_in_sync=1), 1)
    swapped = host.elects()
    host.replica.swapped(swapped, version + 1, host.now_ns)
    host.wait(0.2)
    host.now_ns += 3 * SECOND_NS
    host.polls(swapped, version + 1)
    role = host.leading
    assert (host.confirmed_position, role.is_waking) == (0, True)
    host.wait(0.2)
    host.polls(swapped, version + 1)
    assert host.confirmed_position == role.log.position


def test_a_replica_that_an_operator_names_takes_the_place_of_one_that_hangs() -> None:
    presences = {"b": Presence(instance="new", life=7)}
    named = ALL.named(presences)
    assert (named.lives, named.last_life) == ({"b": Life(8, "new", "")}, 8)
    assert ReplicaSet.unpack(named.pack()) == named


def test_documents_notes_and_greetings_of_earlier_versions_are_read() -> None:
    document = json.loads(ALL.pack())
    for field in ("lives", "last_life", "primary_instance"):
        del document[field]
    assert ReplicaSet.unpack(json.dumps(document).encode()) == replace(ALL, primary_instance="")
    hello = json.loads(ReplicaGreeting("id", "b", [], [], instance="process").pack())
    del hello["instance"]
    assert ReplicaGreeting.unpack(json.dumps(hello).encode()).instance == ""
    storage = SimulatedStorage(Random(1))
    note = {"pledged": 3, "is_whole": True, "epochs": [], "replica": "b"}
    storage.replace(NAME, json.dumps(note).encode())
    host = FakeHost("b", storage)
    claimed, _ = claim(host, replace(ALL, epoch=3), 1)
    assert host.replica.note.is_whole
    assert claimed.lives["b"] == host.replica.note.life
