import math

from qkvary.training.progress import RunState, Stopwatch


def test_a_state_comes_back() -> None:
    state = RunState(step=7, loss_sum=0.1 + 0.2, validation={"loss": math.inf}, steps_to_solve=5)
    state.seconds["training"] = 1.5
    assert RunState.from_json(state.to_json()) == state


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
