"""Who may do what, in which order and by which clock."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter

from tools.fault_case import STATE, Scene, Seen, case
from tools.service_rig import fetch, serving
from wmrt.client import connect
from wmrt.core.errors import ServiceError

HOUR = 3600 * 10**9
TOKEN, OPERATOR = "client-" + "t" * 16, "operator-" + "o" * 16


@case("a second client for a robot", "refused by name; the first goes on")
def second_client(scene: Scene) -> Seen:
    with scene.raw("twice") as first:
        scene.expect(first.name(first.packed(0)) == "action", "no answer")
        began = time.monotonic()
        try:
            connect(scene.service.unix, "twice", opening=5.0)
            scene.expect(False, "it was let in")
        except ServiceError as error:
            scene.expect(error.name == "held", error.name)
        took = time.monotonic() - began
        scene.expect(first.name(first.packed(1)) == "action", "the first one stood")
    return Seen(f"told held after {1e3 * took:.0f} ms")


@case("a second client, where it may take over", "the first is told, and does not fight")
def takeover(scene: Scene) -> Seen:
    with serving(robots=1, on_second_client="takeover") as service:
        first, second = (connect(service.unix, "r", opening=20.0, deadline=10.0) for _ in range(2))
        told = Counter[str]()
        for _ in range(3):
            try:
                first.act(STATE)
            except ServiceError as error:
                told[error.name] += 1
            scene.expect(second.act(STATE).source == "policy", "the second one stood")
        scene.expect(told == {"taken_over": 3}, f"{told}")
        scene.expect(second.counters["lost"] == 0, "the first one took it back")
        first.close()
        second.close()
    return Seen("told taken_over three times of three; the second was never interrupted")


@case("duplicate, old and foreign messages", "each named, none stepped")
def sequences(scene: Scene) -> Seen:
    told = Counter[str]()
    with scene.raw("order") as raw:
        raw.name(raw.packed(10))
        own = raw.packed(0)
        for message in (
            raw.packed(10), raw.packed(9), raw.packed(0), raw.packed(11, epoch=7),
            raw.packed(12, session=1), raw.packed(13, robot="by"),
        ):  # fmt: skip
            told[raw.name(message)] += 1
        scene.expect(raw.name(own) == "stale", "a replay was stepped")
        raw.say(raw.packed(14))
        answer = raw.hear()
        scene.expect(answer.step == 2, f"step {answer.step}: something of it was stepped")
    expected = {"duplicate": 1, "stale": 2, "malformed": 2, "unknown_session": 1}
    scene.expect(told == expected, f"{dict(told)}")
    return Seen(", ".join(f"{count} {name}" for name, count in told.items()))


@case("a reset while a step is in work", "its answer is discarded; the new epoch starts afresh")
def reset_in_work(scene: Scene) -> Seen:
    with scene.raw("again") as raw:
        raw.name(raw.packed(0))
        raw.say(raw.packed(1, state={**STATE, "wait": 1.0}))
        time.sleep(0.2)  # it is in work
        raw.say(json.dumps({"kind": "reset", "version": 1, "robot": "again"}))
        first, second = raw.hear(), raw.hear()
        scene.expect(first["error"]["name"] == "discarded" and first["sequence"] == 1, f"{first}")
        scene.expect(second["kind"] == "opened" and second["epoch"] == 1, f"{second}")
        raw.say(raw.packed(2, epoch=1))
        answer = raw.hear()
        scene.expect(abs(answer.action[1] - 1e-4) < 1e-6, "it remembers the episode before")
    return Seen("discarded, then the first step of epoch 1", lost=1)


@case(
    "a client's clock an hour off, or jumping", "ages by its own clock; what is old is not stepped"
)
def clocks(scene: Scene) -> Seen:
    told = Counter[str]()
    shifts = {"ahead": HOUR, "behind": -HOUR, "far-behind": -(10**15)}
    with serving(robots=len(shifts), max_age=0.5) as service:
        for name, shift in shifts.items():  # a robot each: a new session closes no breaker
            with connect(service.unix, name, opening=20.0) as client:
                session = client.session
            raw = Scene(service, scene.by, scene.patience).raw(name)
            with raw:
                now = 2 * 10**15 + shift
                for sequence in range(5):
                    at = now + sequence * 10**7
                    raw.say(raw.packed(sequence, captured_ns=at, sent_ns=at + 1000))
                    told[raw.hear().source] += 1
                    time.sleep(0.01)
                now += HOUR  # it jumps
                raw.say(raw.packed(6, captured_ns=now, sent_ns=now))
                told[f"{raw.hear().source} after a jump"] += 1
                at = now + 10**7
                time.sleep(0.7)  # it was captured that long before it is sent
                raw.say(raw.packed(9, captured_ns=at, sent_ns=at + 7 * 10**8))
                scene.expect(raw.hear().source == "fallback", "an old observation was stepped")
                back = raw.packed(10, captured_ns=at - HOUR, sent_ns=at - HOUR)
                raw.say(back)  # nothing is young until the clocks are compared anew
                scene.expect(raw.hear().source == "fallback", "a time in the past was fresh")
                scene.expect(raw.client.session != session, "a session twice")
    scene.expect(told == {"policy": 15, "policy after a jump": 3}, f"{told}")
    return Seen(f"{dict(told)}; 0.7 s old, and an hour back: fallback")


@case("wrong tokens, many and fast", "401, then 429; audited; the right one is served meanwhile")
def tokens(scene: Scene) -> Seen:
    told: Counter[int] = Counter()
    with serving(robots=1, token=TOKEN, operator_token=OPERATOR, audit="audit.jsonl") as service:
        with connect(service.tcp, "r", token=TOKEN, opening=20.0, deadline=10.0) as robot:
            robot.act(STATE)

            def guess(start: int) -> None:
                for i in range(start, start + (300 if scene.long else 80)):
                    wrong = TOKEN[:-1] + chr(97 + i % 19) if i % 2 else f"{i:032d}"
                    status, reply = fetch(service.port, "/v1/info", wrong)
                    scene.replies.append(reply)
                    told[status] += 1

            threads = [threading.Thread(target=guess, args=(i * 1000,)) for i in range(2)]
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                scene.expect(robot.act(STATE).source == "policy", "the robot stood")
                time.sleep(0.02)
            scene.expect(service.info(TOKEN)["ready"], "the right token was not served")
        scene.expect(set(told) == {401, 429} and told[429] > 0, f"{told}")
        status, _ = _operate(service.port, TOKEN)
        scene.expect(status == 403, f"a client's token resets breakers: {status}")
        service.stop()
        lines = [
            json.loads(line) for line in (service.folder / "audit.jsonl").read_text().splitlines()
        ]
    events = Counter(line["event"] for line in lines)
    scene.expect(events["unauthorized"] > 0 and events["forbidden"] == 1, f"{events}")
    scene.expect(TOKEN[:12] not in json.dumps(lines), "a token in the audit log")
    return Seen(f"{told[401]} times 401, {told[429]} times 429, {events['unauthorized']} audited")


def _operate(port: int, token: str) -> tuple[int, str]:
    import urllib.request

    body = json.dumps({"robot": "r", "operator": "A. Person"}).encode()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/breakers/reset", body, headers, method="POST"
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(asked, timeout=10.0) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


CASES = [second_client, takeover, sequences, reset_in_work, clocks, tokens]
