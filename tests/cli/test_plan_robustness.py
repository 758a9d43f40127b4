"""Every published configuration is answered, whatever its depth, and none takes long.

``tests/fuzz`` breaks them.
"""

import copy
import cProfile
import random
from typing import Any

import pytest

from qkvary.arch.families.table import read_model
from qkvary.arch.models import count_kinds
from qkvary.costs.candidates import choose_candidates
from qkvary.costs.comparison import choose_context, collect_notes, compare_model
from qkvary.costs.devices import DEVICES
from qkvary.costs.exact_savings import find_savings
from qkvary.costs.formats import FORMATS, parse_format
from qkvary.costs.parameters import model_parameters
from qkvary.costs.serving import Demand
from qkvary.planning.advice import advise_serving, nearest_size, serve_variants
from qkvary.planning.training_advice import Regime, advise_training, train_variants
from tests.arch.families.config_files import OF_EACH_FAMILY, WHOLE_FILES, load

PUBLISHED: dict[str, dict[str, Any]] = {
    name: load(name) for name in {*WHOLE_FILES, *OF_EACH_FAMILY.values()}
}
MOST_CALLS = 600_000
"""Python calls for reading a configuration and all answers about it: well below a second."""


def answer_everything(config: dict[str, Any], generator: random.Random) -> None:
    """Ask all that the commands ask about one configuration."""
    model = read_model(config, "strange")
    context = choose_context(model, generator.choice((None, 1, 7, 32_768, 2**40)))
    seen = generator.choice((None, 1, 1500, 2**40))
    cache, weights = (parse_format(generator.choice(FORMATS)) for _ in range(2))
    compared = compare_model(
        model,
        context=context,
        batch=generator.choice((1, 2**40)),
        weights=weights,
        cache=cache,
        encoder_tokens=seen,
    )
    assert compared.rows
    chosen = choose_candidates(model)
    assert collect_notes(model, chosen, context) is not None
    size = nearest_size(model_parameters(model).total)
    demand = Demand(
        device=DEVICES[generator.choice(list(DEVICES))],
        context=context,
        users=generator.choice((1, 100, 2**40)),
        weights=weights,
        price=2000,
        encoder_tokens=seen,
    )
    if model.is_causal:
        find_savings(model, context=context, stored_as=cache, encoder_tokens=seen)
        served = serve_variants(chosen.rows, demand, (cache,), size=size)
        assert all(isinstance(sentence, str) for sentence in advise_serving(served))
    trained = train_variants(
        [row for row in chosen.rows if row.saving is None],
        demand,
        Regime(checkpointing=generator.random() < 0.5),
        size=size,
    )
    assert all(isinstance(sentence, str) for sentence in advise_training(trained))


def check_one(config: dict[str, Any], seed: str) -> None:
    """All is answered, and by how many Python functions is bounded."""
    profile = cProfile.Profile(subcalls=False, builtins=False)
    profile.runcall(answer_everything, config, random.Random(seed))
    calls = sum(entry.callcount for entry in profile.getstats())
    assert calls < MOST_CALLS, (seed, calls)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_what_is_published_is_answered(name: str) -> None:
    check_one(PUBLISHED[name], name)


def deepened(name: str, depth: int) -> dict[str, Any]:
    """A published configuration with more layers in its own pattern."""
    config = copy.deepcopy(load(name))
    for part in (config, *(value for value in config.values() if isinstance(value, dict))):
        old = next(
            (part[key] for key in ("num_hidden_layers", "n_layer", "num_layers") if key in part), 0
        )
        for key, value in part.items():
            if isinstance(value, list) and old and len(value) >= old:
                part[key] = (value[:old] * depth)[:depth] + value[old:]
            elif isinstance(value, int) and value == old and "layer" in key:
                part[key] = depth
    return config


@pytest.mark.parametrize("name", ["deepseek-v4-flash", "t5-small"])
def test_the_most_layers_are_no_more_work(name: str) -> None:
    """Ten thousand layers in a family's own pattern: counted by kind, not one by one."""
    config = deepened(name, 10_000)
    check_one(config, name)
    assert len(count_kinds(read_model(config, name).layers)) < 10
