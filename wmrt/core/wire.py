"""What a robot and a service say to each other: version 1.

Binary messages carry the control step: an observation (`FLOATS`, `MSGPACK`) and its answer
(`ACTION`). Everything else, and all of it for people, is JSON text with the same names. Every
message names version, robot, session, epoch and sequence number; times are monotonic nanoseconds of
whoever sends the message.
"""

from __future__ import annotations

import functools
import json
import re
import struct
from typing import Any, NamedTuple

from wmrt.core.errors import UsageError, WmrtError

VERSION = 1
MAGIC = b"WM"
FLOATS, MSGPACK, ACTION = 1, 2, 3
#: Longest name of a robot, in bytes of UTF-8.
NAME_BYTES = 64
#: Header with the robot's name, by which proxies send it to its process; Ray Serve's name for it.
ROBOT_HEADER = "x-session-id"
_NONE = -(2**63)
_SESSION = re.compile(r"[0-9a-f]{16}")

#: Name of a refusal to its HTTP status.
REFUSALS = {
    "malformed": 400,  # no message of this version, or a field that is missing or of another type
    "unauthorized": 401,  # no bearer token, or a wrong one
    "forbidden": 403,  # needs the operator's token, or comes from a foreign web page
    "not_found": 404,
    "not_allowed": 405,
    "too_slow": 408,
    "unknown_session": 409,  # send your state: open a session
    "held": 409,  # another client holds this robot
    "taken_over": 409,  # another client has taken this robot over
    "stale": 409,  # a sequence number lower than the last one
    "duplicate": 409,  # the last sequence number again
    "stale_epoch": 409,  # of before the last reset
    "superseded": 409,  # a newer observation came before this one was looked at
    "discarded": 409,  # a reset came while this one was in work
    "refused": 409,  # what the breakers refuse an operator
    "too_large": 413,
    "misrouted": 421,  # without the header by which a fleet finds the robot's process
    "moved": 421,  # another process of the fleet has the robot: connect again
    "too_many_robots": 429,
    "too_many_connections": 429,
    "too_fast": 429,
    "internal": 500,
    "not_ready": 503,
    "draining": 503,
    "unconfirmed": 503,  # what an operator wants of a robot elsewhere is not known to be done
}

# magic, version, kind, session, epoch, sequence, captured, sent, bytes of the name
_OBSERVED = struct.Struct("<2sBBQIQqqB")
# magic, version, kind, session, epoch, sequence, step, captured, queue, policy, act, skipped, late,
# tripped levels as bits, bytes of name, source and breakers' state, actuators
_ACTED = struct.Struct("<2sBBQIQQqqqqIBBBBBH")
# What follows from them, once: a step that comes every few ms finds no cache warm, and pays for
# each thing it looks up.
_OBSERVATIONS, _ANSWERS = (FLOATS, MSGPACK), (ACTION,)
_OBSERVED_SIZE, _ACTED_SIZE = _OBSERVED.size, _ACTED.size
#: Levels that tripped, by the byte that says so.
TRIPPED = tuple(tuple(level for level in range(8) if bits >> level & 1) for bits in range(256))


class Observed(NamedTuple):
    """One observation.

    Attributes:
        robot: its name. session: what opening it gave, 64 bits. epoch: counts its resets.
        sequence: ascending within a session.
        state: field name to value.
        captured_ns: when it was captured, sent_ns: when it was sent, both on the sender's monotonic
            clock; None for an observation that does not say.
    """

    robot: str
    session: int
    epoch: int
    sequence: int
    state: Any
    captured_ns: int | None = None
    sent_ns: int | None = None


class Acted(NamedTuple):
    """The answer to one observation.

    Attributes:
        robot, session, epoch, sequence, captured_ns: the observation's.
        step: number of the control step.
        action: normalised, one float32 value per actuator.
        source: where it comes from; `wmrt.safety.Decision` lists them.
        breakers: their state after the step. tripped: levels that tripped.
        late: the step missed its deadline.
        skipped: observations since the last answer that were replaced by newer ones.
        queue_ns: from arrival to the start of the step. policy_ns: the policy's own time, None
            where it was not asked. act_ns: the whole step.
    """

    robot: str
    session: int
    epoch: int
    sequence: int
    step: int
    action: tuple[float, ...]
    source: str
    breakers: str
    tripped: tuple[int, ...]
    late: bool
    skipped: int
    captured_ns: int | None
    queue_ns: int
    policy_ns: int | None
    act_ns: int


class Refused(NamedTuple):
    """Why there is no answer: a name of `REFUSALS`, and words."""

    name: str
    message: str
    sequence: int | None = None


class WireError(WmrtError):
    """Bytes or a text that are no message of this version."""


def session_text(session: int) -> str:
    """A session as JSON has it: 16 hex digits."""
    return f"{session:016x}"


def session_number(text: Any) -> int:
    """Inverse of `session_text`; `WireError` for anything else."""
    if not isinstance(text, str) or not _SESSION.fullmatch(text):
        said = "16 hex digits, as opening the session gave them"
        raise WireError(f"session {str(text)[:40]!r}: {said}")
    return int(text, 16)


def pack_observed(head: Observed, kind: int, body: bytes) -> bytes:
    """A binary observation; ``head.state`` is what ``body`` holds and is not looked at."""
    name = head.robot.encode()
    if len(name) > NAME_BYTES:
        raise UsageError(f"robot {head.robot[:80]!r}: a name has at most {NAME_BYTES} bytes")
    captured, sent = _stamp(head.captured_ns), _stamp(head.sent_ns)
    fixed = _OBSERVED.pack(
        *(MAGIC, VERSION, kind, head.session, head.epoch, head.sequence, captured, sent, len(name))
    )
    return b"".join((fixed, name, body))


def unpack_observed(data: bytes) -> tuple[int, Observed, memoryview]:
    """Kind, head (state None) and body of a binary observation; `WireError` if it is none."""
    check_head(data, _OBSERVATIONS, _OBSERVED_SIZE)
    _, _, kind, session, epoch, sequence, captured, sent, size = _OBSERVED.unpack_from(data)
    end = _OBSERVED_SIZE + size
    try:
        robot = data[_OBSERVED_SIZE:end].decode()
    except UnicodeDecodeError:
        raise WireError("the robot's name is no UTF-8") from None
    if len(data) < end:
        raise WireError(f"{len(data)} bytes end within the robot's name, which takes {end}")
    captured_ns, sent_ns = _known(captured), _known(sent)
    head = Observed(robot, session, epoch, sequence, None, captured_ns, sent_ns)
    return kind, head, memoryview(data)[end:]


def check_head(data: bytes, kinds: tuple[int, ...], size: int) -> None:
    """Raise `WireError` unless ``data`` is long enough and begins as one of ``kinds`` does."""
    if len(data) < size or data[:2] != MAGIC:
        raise WireError(
            f"{len(data)} bytes that begin with {data[:4].hex() or 'nothing'} are no message; one "
            f"begins with {MAGIC.hex()} and has at least {size} bytes"
        )
    if data[2] != VERSION:
        raise WireError(f"version {data[2]} is not known here; this side speaks {VERSION}")
    if data[3] not in kinds:
        raise WireError(f"message kind {data[3]}: expected one of {', '.join(map(str, kinds))}")


def pack_acted(answer: Acted) -> bytes:
    """A binary answer."""
    (robot, session, epoch, sequence, step, action, source, breakers, tripped, late, skipped) = (
        answer[:11]
    )
    captured, queue, policy, act = answer[11:]
    levels = 0
    for level in tripped:
        levels |= 1 << level
    name, origin, state = robot.encode(), source.encode(), breakers.encode()
    actuators = len(action)
    fixed = _ACTED.pack(
        *(MAGIC, VERSION, ACTION, session, epoch, sequence, step),
        *(_NONE if captured is None else captured, queue, _NONE if policy is None else policy, act),
        *(min(skipped, 2**32 - 1), late, levels, len(name), len(origin), len(state), actuators),
    )
    return b"".join((fixed, name, origin, state, _floats(actuators).pack(*action)))


def unpack_acted(data: bytes) -> Acted:
    """Inverse of `pack_acted`; `WireError` if it is none."""
    check_head(data, _ANSWERS, _ACTED_SIZE)
    (_, _, _, session, epoch, sequence, step, captured, queue, policy, act, skipped, late) = (
        fixed := _ACTED.unpack_from(data)
    )[:13]
    levels, names, sources, states, actuators = fixed[13:]
    second = _ACTED_SIZE + names
    third = second + sources
    end = third + states
    if len(data) != end + 4 * actuators:
        raise WireError(f"an answer of {len(data)} bytes says that it has {end + 4 * actuators}")
    try:
        robot, source = data[_ACTED_SIZE:second].decode(), data[second:third].decode()
        state = data[third:end].decode()
    except UnicodeDecodeError:
        raise WireError("a name in the answer is no UTF-8") from None
    return Acted(
        robot,
        session,
        epoch,
        sequence,
        step,
        _floats(actuators).unpack_from(data, end),
        source,
        state,
        TRIPPED[levels],
        late != 0,
        skipped,
        None if captured == _NONE else captured,
        queue,
        None if policy == _NONE else policy,
        act,
    )


@functools.lru_cache(64)
def _floats(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}f")


def acted_json(answer: Acted) -> dict[str, Any]:
    """An answer as JSON has it."""
    data = {**answer._asdict(), "session": session_text(answer.session)}
    data["action"], data["tripped"] = list(answer.action), list(answer.tripped)
    return {"kind": "action", "version": VERSION, **data}


def refused_json(refused: Refused) -> dict[str, Any]:
    """A refusal as JSON has it."""
    error = {"name": refused.name, "message": refused.message}
    return {"kind": "refused", "version": VERSION, "error": error, "sequence": refused.sequence}


def read_text(text: str) -> dict[str, Any]:
    """A JSON message of this version: an object with a kind. `WireError` if it is none."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WireError(f"no JSON: {error}") from None
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str):
        raise WireError("a JSON message is an object with kind, a text, and version")
    version = data.get("version")
    if version is True or version != VERSION:
        raise WireError(f"version {version!r} is not known here; this side speaks {VERSION}")
    return data


def _stamp(value: int | None) -> int:
    return _NONE if value is None else value


def _known(value: int) -> int | None:
    return None if value == _NONE else value
