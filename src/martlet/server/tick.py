"""The tick: one round of the event loop, and the work done once for all its input.

A connection that receives bytes reports it; at the tick's end the broker commits and answers.

After a turn the loop polls for more bytes for a moment before it sleeps (busy polling), since a
sleep and a wake-up of the thread cost more than the answer to a lone message, above all in a
virtual machine. Where the hot path is compiled, this poll serves connections itself (see
`martlet.server.nsq.compiled_path`). The length of the poll adapts, as Linux's does for idle
processors (https://docs.kernel.org/virt/guest-halt-polling.html): bytes that arrive soon after the
loop went to sleep open the window, and each poll in vain halves it. So an idle broker sleeps, and
so does one that receives bytes only a thousand times a second.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import monotonic_ns

from martlet.native import ELSEWHERE, FED

MAX_NS = 100_000
"""The maximum window; bytes that arrive within it after the loop went to sleep open it."""
MIN_NS = 10_000
"""The minimum window: a shorter one is closed."""
MAX_SERVE_NS = 10_000_000
"""The maximum time of rounds without the loop. Timers wait that long; other input ends them."""
MAX_MORE_PASSES = 3
"""The maximum number of further passes over the sockets in one such round."""
OTHERS_ROUNDS = 8
"""The number of the loop's rounds that an HTTP request takes, about."""
OTHERS_SERVE_NS = 500_000
"""The maximum time between these rounds."""
FEW = 4
"""Up to this number of connections with input in one turn, each is answered by itself."""


class LoopTicks:
    """The turns of a loop.

    Args:
        clock: nanoseconds, never going back.
        give_way: called in each round without input, so that other processes get the processor.
    """

    __slots__ = (
        "_awake",
        "_call_soon",
        "_clock",
        "_end",
        "_give_way",
        "_input_count",
        "_others_rounds",
        "_since_ns",
        "_window_ns",
        "crowded",
        "serve",
    )

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        end: Callable[[], None],
        clock: Callable[[], int] = monotonic_ns,
        give_way: Callable[[], None] = os.sched_yield,
    ) -> None:
        self._call_soon = call_soon
        self._end = end
        self._clock = clock
        self._give_way = give_way
        self._awake = False
        self._input_count = 0
        self._others_rounds = 0
        """The number of the next rounds that have to come soon."""
        self._since_ns = 0
        self._window_ns = 0
        self.crowded = False
        """Whether many connections had input in the last turn."""
        self.serve: Callable[[int, int], int] | None = None
        """Polls and serves connections without the loop, until none has sent anything for a time,
        or for a maximum time (see `martlet.server.nsq.compiled_path.CompiledPath.serve`).
        """

    def others_wait(self) -> None:
        """Have the loop's next rounds come soon, for input that takes several."""
        self._others_rounds = OTHERS_ROUNDS

    def note_input(self) -> None:
        """Note that bytes have arrived: end the turn, and poll for more after it."""
        self._input_count += 1
        if not self._awake:
            self._awake = True
            if self._clock() - self._since_ns < MAX_NS:
                self._window_ns = MAX_NS
            self._call_soon(self._round)

    def _round(self) -> None:
        """Run before the loop asks for bytes, once a round."""
        if self._input_count:
            self._end_turn()
        elif self._clock() - self._since_ns < self._window_ns:
            self._give_way()
        else:
            half_ns = self._window_ns // 2
            self._window_ns = half_ns if half_ns >= MIN_NS else 0
            self._since_ns = self._clock()
            self._awake = False
            return
        if self._window_ns:
            if self.serve is not None:
                self._serve(self.serve)
            self._call_soon(self._round)
        else:
            self._awake = False

    def _end_turn(self) -> None:
        self.crowded = self._input_count > FEW
        self._input_count = 0
        try:
            self._end()
        except BaseException:
            # Otherwise no turn would ever end again.
            self._awake = False
            raise
        self._since_ns = self._clock()

    def _serve(self, serve: Callable[[int, int], int]) -> None:
        """Serve connections as long as they send, and nothing else wants the loop."""
        budget_ns = MAX_SERVE_NS
        if self._others_rounds:
            self._others_rounds -= 1
            budget_ns = OTHERS_SERVE_NS
        until_ns = self._since_ns + budget_ns
        done = FED
        while done & (FED | ELSEWHERE) == FED and self._since_ns < until_ns:
            try:
                done = serve(self._window_ns, budget_ns)
                # What came while Python handled a batch is committed and answered with it.
                for _ in range(MAX_MORE_PASSES):
                    if done & (FED | ELSEWHERE) != FED or not (more := serve(0, 0)):
                        break
                    done |= more
            except BaseException:
                self._awake = False
                raise
            if done & ~ELSEWHERE:
                self._end_turn()
