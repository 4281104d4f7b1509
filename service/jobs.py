"""An observation on its way through a desk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from wmrt.core.wire import Acted, Observed
from wmrt.service.refusals import Refusal


@dataclass(eq=False)
class Job:
    """An observation in the mailbox.

    Attributes:
        captured_ns: on this machine's clock. arrived_ns: of `time.perf_counter_ns`.
        since_ns: when the first of those arrived that it has replaced; 0: it has replaced none.
        done: for whoever handed it in; the desk does not look at it. Nor at ``send``, which sends
            an answer at once, in any thread, or says that it cannot.
    """

    observed: Observed
    captured_ns: int | None
    arrived_ns: int
    done: Callable[[Acted | Refusal], None]
    send: Callable[[Acted], bool] | None = None
    since_ns: int = 0

    @property
    def waits_ns(self) -> int:
        """Since when its robot has waited, of `time.perf_counter_ns`: a client that sends on does
        not wait anew with each observation."""
        return self.since_ns or self.arrived_ns
