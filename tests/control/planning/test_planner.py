"""Planning against what is known exactly: the optimum, the posterior mean, the count of steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.control.planning.toys import FORCE, PERIOD, SLOW_FORCE, Cart, limits
from tests.safety.support import Watch
from wmrt.control.planning import MPPI, Planner
from wmrt.control.planning.scores import scores

AT = {"position": 0.7, "speed": -0.4}
REST = (0.0,)


def around(cart: Cart, **options: Any) -> Planner:
    """Whatever the defaults are."""
    options = {"budget": 400, "temperature": 0.05, "margin": 0.0, **options}
    return MPPI(**options).around(cart, limits(cart.actions), math.inf)


def test_many_samples_give_the_mean_of_the_posterior(seed: int) -> None:
    """Prior N(chunk, S) and a return r + g u - u H u / 2 of the noise u: the weighted mean tends to
    chunk + (1/S + H/temperature)^-1 g / temperature."""
    rng = np.random.default_rng(seed)
    horizon, samples, temperature, spread, smooth = 4, 40_000, 0.1, 0.08, 0.6
    cart = Cart(rng.uniform(-0.3, 0.3, (horizon, 1)))
    options = {"discount": 0.9, "tail": 7}
    planner = around(
        cart, horizon=horizon, budget=horizon * (samples + 1), temperature=temperature,
        spread=spread, smoothness=smooth, seed=seed, **options,
    )  # fmt: skip
    answer = planner.step(AT, REST)
    assert answer.choice.taken == "plan"

    def value(noise: Any) -> float:
        future = cart.imagine((cart.chunk + noise[:, None])[None])
        return float(scores(future.reward, future.proceed, **options)[0])

    unit = np.eye(horizon)
    gradient = np.array([(value(e) - value(-e)) / 2 for e in unit])
    curve = np.array(
        [[value(a + b) - value(a) - value(b) + value(0 * a) for b in unit] for a in unit]
    )
    steps = np.arange(horizon)
    prior = spread**2 * smooth ** np.abs(steps[:, None] - steps)
    posterior = np.linalg.inv(np.linalg.inv(prior) - curve / temperature)
    expected = cart.chunk[:, 0] + posterior @ gradient / temperature
    error = np.abs(answer.chunk[:, 0] - expected)
    assert answer.choice.effective > 1_000
    assert (error < 6 * np.sqrt(np.diag(posterior) / answer.choice.effective)).all()
    assert np.abs(expected - cart.chunk[:, 0]).max() > 20 * error.max()  # there was a way to go


def drive(policy: Any, steps: int, start: dict[str, float]) -> tuple[list[Any], float]:
    """Actions, and the sum of rewards of the cart that ``policy`` pushes."""
    world, state, last, total, actions = Cart(), dict(start), np.zeros(1, np.float32), 0.0, []
    for _ in range(steps):
        last = np.asarray(policy.step(state, last).action)
        actions.append(last)
        world.step(state, last)
        future = world.imagine(last[None, None])
        total += float(future.reward[0, 0])
        state = dict(zip(("position", "speed"), world.roll(last[None, None])[0, 0], strict=True))
    return actions, total


def optimum(steps: int, start: dict[str, float]) -> float:
    """The best sum of rewards of ``steps`` steps that forces of any size reach: dynamic programming
    backwards over the quadratic cost that remains."""
    move, push = np.array([[1.0, PERIOD], [0.0, 1.0]]), np.array([0.0, 4.0 * PERIOD])
    price, remaining = np.diag([1.0, 0.1]), np.zeros((2, 2))
    for _ in range(steps):
        after = price + remaining
        gain = push @ after @ move / (push @ after @ push)
        closed = move - np.outer(push, gain)
        remaining = closed.T @ after @ closed
    at = np.array([start["position"], start["speed"]])
    return -float(at @ remaining @ at)


@pytest.mark.parametrize("actions", [FORCE, SLOW_FORCE])
def test_planning_brings_the_cart_home_within_box_and_rate(actions: Any, seed: int) -> None:
    start = {"position": 1.0, "speed": 0.5}
    planner = around(
        Cart(actions=actions), horizon=12, budget=3_000, temperature=0.05, spread=0.6, seed=seed
    )
    sent, planned = drive(planner, 60, start)
    _, plain = drive(Cart(actions=actions), 60, start)
    best = optimum(60, start)
    print(f"plain {plain:.2f}, planned {planned:.2f}, with forces of any size {best:.2f}")
    assert plain < 50 * best and 4 * best < planned <= best
    watch = Watch(actions, REST)
    for n, action in enumerate(sent):
        watch.see((n + 1) * round(PERIOD * 1e9), action.tolist())
    taken = planner.stats()["taken"]
    assert taken["plan"] > 15 and taken["plan"] + taken["worse"] == 60


@pytest.mark.parametrize(("budget", "horizon"), [(24, 8), (100, 7), (333, 10), (3, 1)])
def test_the_budget_is_what_is_imagined(budget: int, horizon: int, seed: int) -> None:
    cart = Cart()
    planner = around(cart, budget=budget, horizon=horizon, seed=seed)
    for n in range(1, 6):
        planner.step(AT, REST)
        assert cart.imagined == n * planner.settings.steps == planner.stats()["imagined_steps"]
    assert budget - horizon < planner.settings.steps <= budget
    # one call for the samples, one for the plan made of them
    assert cart.calls[:2] == [planner.settings.samples * horizon, horizon]


def test_same_seed_and_inputs_same_bits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tape = [
        ({"position": float(p), "speed": float(v)}, rng.uniform(-1, 1, 1).astype(np.float32))
        for p, v in rng.uniform(-1, 1, (15, 2))
    ]

    def run(planner: Planner) -> list[Any]:
        planner.reset()
        steps = [planner.step(*inputs) for inputs in tape]
        return [(s.action.tobytes(), s.chunk.tobytes(), s.choice) for s in steps]

    one, two = around(Cart(), seed=seed), around(Cart(), seed=seed)
    first = run(one)
    assert run(two) == first
    assert run(one) == first, "reset starts the draws again"
    assert run(around(Cart(), seed=seed + 1)) != first


def test_what_is_predicted_follows_from_the_plan_and_not_from_the_policy(seed: int) -> None:
    cart = Cart()
    answer = around(cart, seed=seed).step(AT, REST)
    assert answer.choice.taken == "plan" and np.array_equal(answer.chunk[0], answer.action)
    expected = cart.roll(answer.chunk[None])[0, 0]
    got = [answer.predicted["position"], answer.predicted["speed"]]
    assert np.abs(np.array(got) - expected).max() <= 0.5e-4 + 1e-12
    assert answer.predicted["speed"] != pytest.approx(answer.own.predicted["speed"], abs=1e-3)


def test_without_a_better_plan_the_policy_s_own_answer_leaves_untouched(seed: int) -> None:
    cart = Cart(np.full((8, 1), 0.25))
    cart.spoil = lambda plans, reward: -np.square(plans[..., 0] - 0.25)  # the policy is the best
    planner = around(cart, seed=seed)
    answer = planner.step(AT, REST)
    assert answer.choice.taken == "worse" and answer.choice.own == 0.0
    assert answer.action is answer.own.action and answer.chunk is answer.own.chunk
    assert answer.predicted is answer.own.predicted
    assert planner.last == answer.choice and planner.stats()["taken"]["worse"] == 1


def test_an_action_of_the_policy_that_plans_led_away_from_is_approached(seed: int) -> None:
    cart = Cart(np.full((8, 1), 0.5), SLOW_FORCE)
    cart.spoil = lambda plans, reward: -np.square(plans[..., 0] - 0.5)  # the policy is the best
    answer = around(cart, seed=seed).step(AT, (0.0,))
    up = SLOW_FORCE.dims[0].max_delta(PERIOD)[0]
    assert answer.choice.taken == "worse" and up - 1e-6 < answer.action[0] <= up
    assert np.diff(answer.chunk[:, 0], prepend=0.0)[:4] == pytest.approx(np.full(4, up), abs=1e-6)
    expected = cart.roll(answer.chunk[None])[0, 0]
    assert answer.predicted["speed"] == pytest.approx(expected[1], abs=0.51e-4)
    cart.spoil = lambda plans, reward: np.full_like(reward, math.nan)
    unknown = around(cart, seed=seed).step(AT, (0.0,))
    assert unknown.choice.taken == "nonfinite" and unknown.predicted is None
    assert unknown.action.tolist() == answer.action.tolist()


def test_a_plan_has_to_be_better_by_the_margin(seed: int) -> None:
    plain = around(Cart(), seed=seed).step(AT, REST).choice
    gain = plain.planned - plain.own  # type: ignore[operator]
    assert plain.taken == "plan" and gain > 0
    for margin, taken in ((gain * 0.999, "plan"), (gain * 1.001, "worse")):
        assert around(Cart(), seed=seed, margin=margin).step(AT, REST).choice.taken == taken


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_samples_that_are_not_finite_do_not_count(bad: float, seed: int) -> None:
    cart, clean = Cart(), Cart()
    dropped: list[int] = []
    free = around(clean, seed=seed).step({"position": -0.7, "speed": 0.0}, REST)
    limit = 0.5 * float(free.action[0])

    def spoil(plans: Any, reward: Any) -> Any:
        """The samples that push hard at the start, which would win otherwise."""
        hard = plans[:, 0, 0] > limit
        if len(plans) > 1:
            dropped.append(int(hard.sum()))
        return np.where(hard[:, None] & (len(plans) > 1), bad, reward)

    cart.spoil = spoil
    answer = around(cart, seed=seed).step({"position": -0.7, "speed": 0.0}, REST)
    assert answer.choice.dropped == dropped[0] > 0 and free.choice.dropped == 0
    assert np.isfinite(answer.action).all() and answer.action[0] <= limit < free.action[0]


def test_when_no_sample_is_finite_the_policy_drives_and_it_is_recorded(seed: int) -> None:
    cart = Cart(np.full((8, 1), 0.3))
    cart.spoil = lambda plans, reward: np.full_like(reward, math.nan)
    planner = around(cart, seed=seed)
    answer = planner.step(AT, REST)
    assert answer.action is answer.own.action and answer.predicted is answer.own.predicted
    assert answer.choice.taken == "nonfinite" and answer.choice.dropped == planner.settings.samples
    stats = planner.stats()
    assert stats["taken"]["nonfinite"] == 1
    assert stats["dropped_samples"] == planner.settings.samples


def test_a_plan_whose_own_return_is_not_finite_is_not_taken(seed: int) -> None:
    cart = Cart()
    cart.spoil = lambda plans, reward: reward * (math.nan if len(plans) == 1 else 1.0)
    answer = around(cart, seed=seed).step(AT, REST)
    assert answer.choice.taken == "nonfinite" and answer.choice.planned is None
    assert answer.choice.dropped == 0 and answer.action is answer.own.action


def test_if_only_the_policy_s_own_return_is_unknown_the_plan_is_taken(seed: int) -> None:
    cart = Cart()

    def spoil(plans: Any, reward: Any) -> Any:
        return np.where((np.arange(len(plans)) == 0)[:, None] & (len(plans) > 1), math.nan, reward)

    cart.spoil = spoil
    choice = around(cart, seed=seed).step(AT, REST).choice
    assert choice.taken == "plan" and choice.own is None and choice.dropped == 1


@pytest.mark.parametrize(
    "chunk", [np.zeros((3, 1)), np.full((8, 1), np.nan), np.zeros((8, 2)), None, [["a"]]]
)
def test_a_chunk_that_is_short_or_unusable_is_made_up_for(chunk: Any, seed: int) -> None:
    class Odd(Cart):
        def step(self, state: Any, previous_action: Any) -> Any:
            found = super().step(state, previous_action)
            found.chunk = chunk
            return found

    answer = around(Odd(), seed=seed).step(AT, REST)
    assert answer.choice.taken == "plan" and answer.chunk.shape == (8, 1)


@pytest.mark.parametrize("action", [[math.nan], [math.inf], [1.5], [0.0, 0.0], "0", None])
def test_an_action_nothing_can_be_drawn_around_is_left_to_the_breakers(
    action: Any, seed: int
) -> None:
    class Broken(Cart):
        def step(self, state: Any, previous_action: Any) -> Any:
            found = super().step(state, previous_action)
            found.action = action
            return found

    cart = Broken()
    planner = around(cart, seed=seed)
    answer = planner.step(AT, REST)
    assert answer.action is action and answer.choice.taken == "malformed" and not cart.imagined
    assert planner.stats()["taken"]["malformed"] == 1


def test_what_the_model_raises_passes() -> None:
    class Fails(Cart):
        def imagine(self, plans: Any) -> Any:
            raise ArithmeticError("no")

    with pytest.raises(ArithmeticError):
        around(Fails()).step(AT, REST)


def test_the_policy_hears_what_was_sent_and_by_default_what_was_planned(seed: int) -> None:
    cart = Cart()
    planner = around(cart, seed=seed)
    first = planner.step(AT)
    planner.step(AT)
    planner.step(AT, (0.125,))
    assert [seen[1].tolist() for seen in cart.seen] == [[0.0], first.action.tolist(), [0.125]]
    assert first.action.tolist() != [0.0]
    planner.reset()
    planner.step(AT)
    assert cart.resets == 1 and cart.seen[-1][1].tolist() == [0.0]
    assert planner.schema is cart.schema and planner.actions is cart.actions


def test_what_a_monitor_asks_is_the_model_s_where_it_has_it() -> None:
    cart: Any = Cart()
    planner = around(cart)
    assert not hasattr(planner, "foresee") and not hasattr(planner, "recipe")
    cart.foresee, cart.recipe, cart.weights_sha256, cart.origin = cart.roll, "nvfp4", "ab", str
    assert planner.foresee == cart.roll
    assert (planner.recipe, planner.weights_sha256) == ("nvfp4", "ab")
    assert not hasattr(planner, "origin"), "a record of the model alone would not replay"
