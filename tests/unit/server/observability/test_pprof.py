import asyncio
import sys
import threading
import time

from tests.unit.server.pprof_reader import read_profile

from martlet.server.observability.pprof import CodeLocation, Profile, ValueType, stack_of
from martlet.server.observability.sampler import Sampler, awaited_stack, thread_stacks

INNER, OUTER = CodeLocation("inner", "a.py", 300), CodeLocation("Class.outer", "b.py", 7)


def test_a_profile_is_read_back_as_it_was() -> None:
    profile = Profile(
        (ValueType("samples", "count"), ValueType("cpu", "nanoseconds")),
        time_ns=1_700_000_000_000_000_000,
        duration_ns=5,
        period=10_000_000,
    )
    profile.add((INNER, OUTER), 1, 10)
    profile.add((OUTER,), 1, 2**40)
    profile.add((INNER, OUTER), 2, 30)
    read = read_profile(profile.encode())
    assert read.types == [("samples", "count"), ("cpu", "nanoseconds")]
    assert read.samples == {
        ("inner a.py:300", "Class.outer b.py:7"): [3, 40],
        ("Class.outer b.py:7",): [1, 2**40],
    }
    assert read.numbers == {9: 1_700_000_000_000_000_000, 10: 5, 12: 10_000_000}


def test_an_empty_profile_is_one_too() -> None:
    read = read_profile(Profile((ValueType("contentions", "count"),)).encode())
    assert read.samples == {}


def test_the_text_has_the_most_first() -> None:
    profile = Profile((ValueType("goroutine", "count"),))
    profile.add((OUTER,), 1)
    profile.add((INNER, OUTER), 1)
    profile.add((INNER, OUTER), 1)
    assert profile.as_text("goroutine") == (
        "goroutine profile: total 3\n"
        "\n2 @\n#\tinner\ta.py:300\n#\tClass.outer\tb.py:7\n"
        "\n1 @\n#\tClass.outer\tb.py:7\n"
    )


def busy(until: threading.Event, used_ns: list[int]) -> None:
    while not until.is_set():
        sum(range(1000))
        used_ns[0] = time.thread_time_ns()


def test_the_sampler_counts_who_works_and_not_who_waits() -> None:
    done, used_ns = threading.Event(), [0]
    worker = threading.Thread(target=busy, args=(done, used_ns))
    waiter = threading.Thread(target=done.wait, name="waiter")
    ended = threading.Thread(target=int)
    for thread in (worker, waiter, ended):
        thread.start()
    sampler = Sampler()
    try:
        sampler.start()
        deadline_s = time.monotonic() + 20
        while used_ns[0] < 300_000_000 and time.monotonic() < deadline_s:
            ended.join()
            done.wait(0.05)
    finally:
        found = sampler.stop()
        done.set()
        worker.join()
        waiter.join()
    at_work = other = 0
    for stack, (_, spent_ns) in found.samples.items():
        if any(place.function == "busy" for place in stack):
            at_work += spent_ns
        else:
            other += spent_ns
    assert 100_000_000 < at_work <= used_ns[0]
    assert other < at_work
    assert found.duration_ns >= at_work


def test_threads_are_told_by_name() -> None:
    stacks = thread_stacks()
    mine = next(stack for name, stack in stacks.items() if name.startswith("MainThread"))
    assert any("test_threads_are_told_by_name" in place.function for place in mine)
    assert stack_of(sys._getframe())[0].function == "test_threads_are_told_by_name"


async def test_a_task_that_waits_is_told_with_all_who_wait_for_it() -> None:
    gate = asyncio.Event()

    async def inner() -> None:
        await gate.wait()

    async def outer() -> None:
        await inner()

    task = asyncio.create_task(outer())
    await asyncio.sleep(0)
    functions = [place.function.rpartition(".")[2] for place in awaited_stack(task.get_coro())]
    assert functions == ["wait", "inner", "outer"]
    gate.set()
    await task
    assert awaited_stack(task.get_coro()) == ()
