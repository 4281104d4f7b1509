"""The model of a process, set up for its robots: seats, and the threads that step them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wmrt.control import Channel
from wmrt.control.rate import steps_per_question, training_period
from wmrt.core import memory
from wmrt.core.codec import codec
from wmrt.core.errors import UnsupportedError
from wmrt.kernels.native.library import library
from wmrt.runtime.group import SessionGroup
from wmrt.runtime.world_model import WorldModel
from wmrt.service.consensus import channels_of, described
from wmrt.service.doorbell import POSSIBLE
from wmrt.service.placement import place, placeable
from wmrt.service.seats import Gather, ModelSeat, Seat
from wmrt.service.settings import ServeSettings
from wmrt.service.worker import Worker

_IN_TURN = "models that share no read of the weights are stepped one after the other"


class Crew:
    """Seats and their workers.

    One robot, or several models, are stepped by one thread, one after the other. A group has a
    thread for each robot's breakers, and one more that steps all of them on one read of the
    weights. The thread that steps is the pinned one.

    Attributes:
        seats: one per robot. workers: of each seat. threads: these, and the one that steps.
        period: of their control loops, seconds. timed, owned: see `Desk`.
        described: for people: how it steps and where.
        channels: that vote with the policy of the one seat; empty for none.

    Raises:
        SafetyError: a period that is not the model's. UnsupportedError: a processor or a priority
            that was asked for and cannot be had, or the native library, which it takes to spin.
    """

    def __init__(
        self, seats: Sequence[Seat], settings: ServeSettings, gather: Gather | None = None
    ) -> None:
        cpu = placeable(settings.cpu, settings.priority)
        memory.steady_heap()  # before there are threads
        self.seats = tuple(seats)
        self.channels: tuple[Channel, ...] = ()
        self.period = _period(self.seats[0], settings)
        self._gather = gather
        in_turn = gather is None and len(self.seats) > 1
        self.timed = settings.deadline_by == "timer" and not in_turn
        self.owned, ways = _reading(settings, self.timed)
        stepper = Worker(
            "wmrt-steps", cpu, settings.priority, None if gather is None else gather.run
        )
        self._stepper = stepper
        if gather is None:
            self.workers: tuple[Worker, ...] = (stepper,) * len(self.seats)
        else:
            self.workers = tuple(Worker(f"wmrt-robot-{i}") for i in range(len(self.seats)))
        self.threads = (stepper, *self.workers)
        self.described: dict[str, Any] = {
            "robots": len(self.seats),
            "deadline_by": {
                "requested": settings.deadline_by,
                "resolved": "timer" if self.timed else "thread",
                **({"reason": _IN_TURN} if in_turn else {}),
            },
            "websocket": ways,
            "codec": {name: told for name, told in codec().choice._asdict().items() if told},
            "shared_read_of_weights": gather is not None,
            "inference_thread": {
                "requested": {"cpu": settings.cpu, "priority": settings.priority},
                "resolved": stepper.placed,
            },
        }

    def close(self) -> None:
        """End the threads, after what they were given."""
        for worker in dict.fromkeys(self.workers):
            worker.close()
        if self._gather is not None:
            self._gather.close()
            self._stepper.close()


def _reading(settings: ServeSettings, timed: bool) -> tuple[bool, dict[str, Any]]:
    """Whether policies' threads read sockets, and how that came about."""
    wanted = settings.websocket
    told: dict[str, Any] = {"requested": wanted, "resolved": wanted}
    reason = None
    if wanted == "owned" and not timed:
        reason = "no step is decided in a policy's own thread (deadline_by)"
    elif wanted == "owned" and settings.tls_cert is not None:
        reason = "the event loop decrypts TLS"
    elif wanted == "owned" and not POSSIBLE:
        reason = "this system has no epoll or no eventfd"
    if reason is not None:
        told.update(resolved="direct", reason=reason)
    owned = told["resolved"] == "owned"
    if owned and settings.spin:
        library()  # refuses
    told["spin_us"] = settings.spin if owned else 0.0
    return owned, told


def _period(seat: Seat, settings: ServeSettings) -> float:
    """The one that was asked for if the model can run at it, else its own; 0.1 if it has none."""
    period = settings.period or training_period(seat) or 0.1
    steps_per_question(seat, period, settings.resample, 0)  # refuses
    return period


def load_crew(settings: ServeSettings) -> Crew:
    """The model that the settings name, for as many robots.

    Raises:
        WmrtError: a model, recipe or device that cannot be had.
    """
    placeable(settings.cpu, settings.priority)  # told before the work
    recipe = settings.recipe
    model = WorldModel.from_pretrained(
        settings.model,
        recipe=recipe,
        device=settings.device,
        executor=settings.executor,
        threads=settings.threads,
    )
    channels = channels_of(model, settings)
    crew = _seated(model, settings)
    crew.channels = channels
    run = model.report().to_json()
    del run["layers"]  # one line a layer; the kernels' counts say as much
    crew.described.update(
        model=settings.model,
        model_sha256=model.weights_sha256,
        recipe=model.recipe.name,
        provenance_env=model.provenance.get("env"),
        resolved=run["resolved"],
        kernels=run["kernels"],
        consensus=described(model, crew.channels, settings),
        run=run,
    )
    return crew


def _seated(model: WorldModel, settings: ServeSettings) -> Crew:
    cpu = placeable(settings.cpu, settings.priority)

    def put() -> None:
        place(cpu, settings.priority)

    if settings.robots == 1:
        return Crew([ModelSeat(model, put)], settings)
    try:
        gather = Gather(SessionGroup(model, settings.robots))
    except UnsupportedError as error:  # of the eager executor: a fork each, stepped in turn
        forks = [model, *(model.fork() for _ in range(settings.robots - 1))]
        crew = Crew([ModelSeat(fork, put) for fork in forks], settings)
        crew.described["shared_read_of_weights_reason"] = str(error)
        return crew
    crew = Crew(gather.seats, settings, gather)
    report = gather.group.report().to_json()
    crew.described["group"] = {k: report[k] for k in ("rows", "graph", "graph_reason", "bytes")}
    return crew
