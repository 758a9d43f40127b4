"""By how much two ways to compute one function may differ, and the networks that are asked.

Logic is tested in float64, where rounding is about 1e-14 and mistakes are above 1e-6. In fewer bits
the gate is what rounding does to this network, measured against float64, below a ceiling that no
network may pass. Errors are in deviations of the logits.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from qkvary.arch.attention import AttentionConfig, Kernel, ValueRope
from qkvary.arch.networks import LanguageModelConfig, Positions
from qkvary.nn.language_model import LanguageModel
from tests.contracts.variant_cases import make_config, make_language_model_config, randomize

CEILINGS = {
    torch.float64: (1e-12, 1e-12),
    torch.float32: (1e-5, 1e-9),
    torch.float16: (2e-2, 5e-5),
    torch.bfloat16: (0.15, 3e-3),
}
"""Of the largest error and the largest KL divergence of a position, whatever is measured."""
DTYPES = tuple(CEILINGS)
SPREAD = 4.0
"""How much further from float64 one way may be than another that rounds as often."""
VOCABULARY, MAX_TOKENS = 13, 17
DEVIATION = 2.0
"""Of the logits: flat ones hide mistakes."""


def error(found: Tensor, exact: Tensor) -> float:
    """The largest difference over the deviation of what is exact; infinite for a NaN."""
    largest = float((found.double() - exact).abs().max() / exact.std())
    return math.inf if math.isnan(largest) else largest


def divergence(found: Tensor, exact: Tensor) -> float:
    """The largest KL(exact || found) over positions, in nats."""
    p, q = exact.log_softmax(dim=-1), found.double().log_softmax(dim=-1)
    largest = float((p.exp() * (p - q)).sum(dim=-1).max())
    return math.inf if math.isnan(largest) else largest


def assert_one_function(exact: Tensor, whole: Tensor, **others: Tensor) -> None:
    """The gate: every way is as near to float64 as the whole sequence at once, and to that.

    Args:
        exact: Logits of the whole sequence in float64, by the same rounded weights.
        whole: The same in the number format that is judged; it calibrates the gate.
        others: Logits by other ways in that format.
    """
    ceiling, most = CEILINGS[whole.dtype]
    own = error(whole, exact)
    assert own <= ceiling, f"whole: {own:.2e} from float64"
    for name, logits in others.items():
        assert logits.dtype == whole.dtype
        off, lost = error(logits, exact), divergence(logits, exact)
        apart = float((logits.double() - whole.double()).abs().max() / exact.std())
        agree = float((logits.argmax(dim=-1) == exact.argmax(dim=-1)).double().mean())
        found = f"{name}: {off:.2e} from float64, {apart:.2e} from the whole ({own:.2e}), "
        found += f"KL {lost:.2e}, top-1 {agree:.3f}"
        assert max(off, apart) <= ceiling, found
        assert lost <= most, found
        if whole.dtype != torch.float64:
            assert apart <= SPREAD * max(off, own), found
            # Else a wrong way would widen the gate by its own error.
            assert off <= SPREAD * own, found


def _build(
    *labels: str,
    positions: Positions = "none",
    value_rope: ValueRope = "counter",
    seed: int = 139,
) -> LanguageModel:
    """A random network of a layer for each label, whose logits have the deviation wanted."""
    configs = [make_config(label, causal=True, value_rope=value_rope) for label in labels]
    model = LanguageModel(_config(tuple(configs), positions))
    randomize(model, seed=seed)
    with torch.no_grad():
        logits = model.double()(torch.arange(4 * MAX_TOKENS).view(4, -1) * 5 % VOCABULARY)
        assert model.head_weight is not None
        model.head_weight.mul_(DEVIATION / logits.std())
    return model


def _config(layers: tuple[AttentionConfig, ...], positions: Positions) -> LanguageModelConfig:
    return dataclasses.replace(
        make_language_model_config("QKV", positions=positions),
        attention=layers,
        num_layers=len(layers),
        tied_head=False,
        head_bias=False,
    )


def _two(label: str, **fields: object) -> Callable[[], LanguageModel]:
    return functools.partial(_build, label, label, **fields)  # type: ignore[arg-type]


NETWORKS: dict[str, Callable[[], LanguageModel]] = {
    "QKV": _two("QKV", positions="learned"),
    "GQA": _two("GQA-2@rotary"),
    "MQA": _two("MQA@alibi"),
    "Q-K=V": _two("Q-K=V", positions="sinusoidal"),
    "Q=K-V": _two("Q=K-V@rotary"),
    "Q=K=V": _two("Q=K=V@relative", positions="learned"),
    "Q=K-V+": _two("(Q=K-V)+"),
    "Q-MQA": _two("Q-MQA", positions="learned"),
    "I-K=V": _two("I-K=V@rotary"),
    "counter": _two("Q-K=V@rotary"),
    "value before rotation": _two("Q-GQA-2@rotary", value_rope="none"),
    "low rank": _two("Q-K[r3]-V[d/4]/2@rotary"),
    "low rank K=V": _two("Q-K[r7]=V", positions="learned"),
    "portable": _two("Q-GQA-2@decoupled-4@kv-norm"),
    "latent": _two("Q-K=V@decoupled-4@latent-7@kv-norm"),
    "window": _two("Q-K=V@rotary@w4"),
    "mixed layers": functools.partial(_build, "Q-MQA@rotary", "QKV@w4", "Q-K=V@alibi"),
}
"""Every sharing with every meaning of heads, and positions of every kind."""


@functools.cache
def find_network(name: str, dtype: torch.dtype = torch.float64) -> LanguageModel:
    """A network in evaluation mode; in fewer bits the same one with rounded weights."""
    if dtype == torch.float64:
        return NETWORKS[name]().double().eval()
    model = LanguageModel(find_network(name).config).to(dtype)
    model.load_state_dict(find_network(name).state_dict())
    return model.eval()


@functools.cache
def exact_network(name: str, dtype: torch.dtype) -> LanguageModel:
    """The weights of a number format in float64, so that the computation alone is judged."""
    model = LanguageModel(find_network(name).config).double()
    model.load_state_dict(find_network(name, dtype).state_dict())
    return model.eval()


def with_kernel(model: LanguageModel, kernel: Kernel) -> LanguageModel:
    """The same network with a kernel pinned in every layer."""
    layers = tuple(dataclasses.replace(layer, kernel=kernel) for layer in model.config.layers)
    changed = LanguageModel(dataclasses.replace(model.config, attention=layers))
    changed = changed.to(model.embedding.dtype)
    changed.load_state_dict(model.state_dict())
    return changed.eval()


def random_tokens(rows: int, length: int, *, seed: int = 7) -> Tensor:
    """Any text."""
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))
