"""What is skipped, what ends a run, and what does not."""

import json
import math
import random

import pytest

from qkvary.storage.errors import DivergedError
from qkvary.training.config import GuardConfig
from qkvary.training.progress import Guards, GuardState, RunState, Stopwatch

SKIP = GuardConfig(on_nonfinite="skip")


def feed(guards: Guards, losses: list[float], first: int = 0) -> list[bool]:
    return [
        guards.allows(step, loss=loss, norm=1.0) for step, loss in enumerate(losses, start=first)
    ]


def healthy(seed: int) -> list[float]:
    """A falling loss with noise whose size varies and with short spikes."""
    draw = random.Random(seed)
    noise, floor = draw.uniform(0.0, 0.3), draw.choice([0.0, 0.01, 1.5, 3.0])
    losses = [
        floor + 4.0 * math.exp(-step / draw.uniform(50, 200)) * draw.uniform(1 - noise, 1 + noise)
        for step in range(700)
    ]
    for start in (draw.randrange(first, first + 100) for first in (150, 350, 550)):
        for step in range(start, start + draw.randrange(1, 40)):
            losses[step] += draw.uniform(0.5, 5.0)
    return losses


@pytest.mark.parametrize("seed", range(12))
def test_a_healthy_run_is_let_alone(seed: int) -> None:
    assert all(feed(Guards(GuardConfig(), GuardState()), healthy(seed)))


@pytest.mark.parametrize("seed", range(4))
def test_a_loss_that_stays_high_ends_the_run(seed: int) -> None:
    draw = random.Random(seed)
    losses = healthy(seed)
    high = [6.0 + draw.uniform(0, 3) for _ in range(50)]
    guards = Guards(GuardConfig(), GuardState())
    feed(guards, losses)
    assert all(feed(guards, high[:49], first=700))
    with pytest.raises(
        DivergedError, match=r"for 50 steps, and was .* at step 749; lower the learning"
    ):
        guards.allows(749, loss=high[49], norm=1.0)


@pytest.mark.parametrize(
    "losses",
    [[2.3] + [1e-4] * 200 + [1e-2] * 200, [1.0 + 0.001 * step for step in range(3000)]],
    ids=["factors of a nearly solved task", "a slow rise"],
)
def test_what_becomes_usual_is_let_alone(losses: list[float]) -> None:
    assert all(feed(Guards(GuardConfig(), GuardState()), losses))


@pytest.mark.parametrize(
    ("loss", "norm", "what"),
    [(math.nan, 1.0, "loss is nan"), (math.inf, 1.0, "is inf"), (1.0, math.nan, "norm is nan")],
)
def test_what_is_not_finite_stops(loss: float, norm: float, what: str) -> None:
    guards = Guards(GuardConfig(), GuardState())
    with pytest.raises(DivergedError, match=f"{what} at step 7; the earlier weights were kept"):
        guards.allows(7, loss=loss, norm=norm)


def test_so_many_steps_are_skipped_and_one_more_stops() -> None:
    guards = Guards(SKIP, GuardState())
    taken = feed(guards, [1.0, math.nan, 1.0, math.nan, math.inf])
    assert taken == [True, False, True, False, False]
    with pytest.raises(DivergedError, match="not finite in 3 of the 100 steps before it;"):
        guards.allows(100, loss=math.nan, norm=1.0)


def test_large_gradients_are_skipped_however_many() -> None:
    guards = Guards(GuardConfig(skip_gradient_norm=100.0), GuardState())
    assert guards.allows(0, loss=1.0, norm=100.0)
    assert not any(guards.allows(step, loss=1.0, norm=100.1) for step in range(1, 60))
    assert guards.state.large == 59


def test_what_is_remembered_survives_a_checkpoint() -> None:
    whole, losses = Guards(SKIP, GuardState()), [*healthy(3), *[9.0] * 20]
    losses[300] = math.nan
    feed(whole, losses)
    state = RunState()
    half = Guards(SKIP, state.guards)
    feed(half, losses[:333])
    restored = RunState.from_json(json.loads(json.dumps(state.to_json())))
    feed(Guards(SKIP, restored.guards), losses[333:], first=333)
    assert restored.guards == whole.state


def test_a_state_of_the_first_release_with_gaps_is_read() -> None:
    stored = RunState(step=3).to_json()
    del stored["best"]
    assert RunState.from_json({**stored, "log_gaps": [[1, 2]]}).step == 3


def test_every_second_belongs_to_one_phase() -> None:
    state = RunState()
    watch = Stopwatch(state)
    watch.lap("training")
    first = dict(state.seconds)
    watch.lap("evaluation")
    watch.lap("training")
    assert first["training"] > 0
    assert first["evaluation"] == first["other"] == 0
    assert state.seconds["evaluation"] > 0
    assert state.seconds["training"] > first["training"]
    assert state.cpu_seconds >= 0
