"""Configurations are read back from their JSON, and one configuration has one JSON text."""

import dataclasses
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkvary.arch.attention import AttentionConfig, Initialization, PositionConfig, ScaleConfig
from qkvary.arch.canonical import (
    ADDED_LATER,
    canonical_json,
    from_dict,
    stored,
    stored_as,
    to_dict,
)
from qkvary.arch.networks import BlockConfig, EncoderConfig, LanguageModelConfig
from qkvary.arch.variants import Variant
from tests.arch.variant_strategies import variants
from tests.conftest import examples
from tests.small_networks import small_config

PINNED = "ab09d0fed1078cf02c4aa4d8cc11938d8e3411a72b7d8b26e8d3c7621a54d3ed"
LAYER = AttentionConfig(d_model=6, num_heads=2, causal=True)


@stored("Old")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Renamed:
    width: int = dataclasses.field(metadata=stored_as("size"))
    depth: int = dataclasses.field(default=2, metadata=ADDED_LATER)
    marks: tuple[int, ...] = dataclasses.field(default_factory=tuple, metadata=ADDED_LATER)


def make(**fields: Any) -> LanguageModelConfig:
    config = small_config(d_model=6, num_heads=2, d_ff=5)
    return dataclasses.replace(config, **fields)


def shuffle(data: Any) -> Any:
    """The same data with every dictionary in reverse order."""
    if isinstance(data, dict):
        return {key: shuffle(data[key]) for key in reversed(data)}
    return [shuffle(item) for item in data] if isinstance(data, list) else data


@examples(33)
@given(
    variant=variants,
    features=st.integers(1, 99),
    std=st.floats(1e-6, 10.0),
    output_std=st.none() | st.floats(1e-6, 1.0),
    scale=st.sampled_from(["head", "width"]),
    per_layer=st.booleans(),
)
def test_configurations_are_read_back(
    variant: Variant,
    features: int,
    std: float,
    output_std: float | None,
    scale: str,
    per_layer: bool,
) -> None:
    fields = {
        "d_model": 10080,
        "num_heads": 2520,
        "variant": variant,
        "position": PositionConfig(plus_features=features),
        "init": Initialization(scheme="normal", std=std, output_std=output_std),
        "scale": ScaleConfig(by=scale),  # type: ignore[arg-type]
        "causal": True,
    }
    try:
        layer = AttentionConfig(**fields)  # type: ignore[arg-type]
    except ValueError:
        # A fraction of the width, or a number of heads, that these sizes cannot be divided by.
        return
    config = make(attention=(layer, dataclasses.replace(layer, bias=False)) if per_layer else layer)
    data = json.loads(canonical_json(config))
    assert from_dict(LanguageModelConfig, data) == config
    assert canonical_json(from_dict(LanguageModelConfig, shuffle(data))) == canonical_json(config)


def test_one_and_one_point_zero_are_one_number() -> None:
    ints = make(block=BlockConfig(d_ff=5, dropout=0))
    floats = make(block=BlockConfig(d_ff=5, dropout=0.0))
    assert canonical_json(ints) == canonical_json(floats)
    data = to_dict(floats)
    data["block"]["dropout"] = 0
    assert from_dict(LanguageModelConfig, data) == floats
    assert canonical_json(from_dict(LanguageModelConfig, data)) == canonical_json(floats)


def test_the_text_is_pinned() -> None:
    """Stored runs are found by it: if this changes, every finished run is run again."""
    config = EncoderConfig(
        attention=AttentionConfig(d_model=6, num_heads=2),
        block=BlockConfig(d_ff=5),
        num_layers=2,
        vocabulary=7,
        max_tokens=11,
        classes=3,
    )
    assert hashlib.sha256(canonical_json(config).encode()).hexdigest() == PINNED


def test_names_in_python_are_not_those_that_are_stored() -> None:
    assert to_dict(Renamed(width=3)) == {"kind": "Old", "size": 3}
    assert canonical_json(Renamed(width=3), identity=True) == '{"kind":"Old","size":3}'
    assert from_dict(Renamed, {"kind": "Old", "size": 3}) == Renamed(width=3)
    with pytest.raises(ValueError, match="known key in Renamed, got 'width'; did you mean depth"):
        from_dict(Renamed, {"width": 3})


def test_a_field_that_was_added_later_counts_where_it_is_not_its_default() -> None:
    deep = Renamed(width=3, depth=5)
    assert to_dict(deep) == {"kind": "Old", "size": 3, "depth": 5}
    assert from_dict(Renamed, to_dict(deep)) == deep
    assert canonical_json(deep) != canonical_json(Renamed(width=3))


def test_a_kind_belongs_to_one_class() -> None:
    with pytest.raises(ValueError, match="that no other class has, got 'Old', the"):

        @stored("Old")
        class Other:
            pass


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layer": 2}, "known key in LanguageModelConfig, got 'num_layer'; did you mean num_"),
        ({"num_layers": "2"}, "expected LanguageModelConfig.num_layers to be int, got '2'"),
        ({"tied_head": 1}, "expected LanguageModelConfig.tied_head to be bool, got 1"),
        ({"positions": "lerned"}, "got 'lerned'; did you mean learned?"),
        ({"kind": "EncoderConfig"}, "of kind LanguageModelConfig, got 'EncoderConfig'"),
        ({"attention": [to_dict(LAYER)]}, "or one for each of the 2 layers, got 1"),
        ({"block": {"d_ff": 0}}, "expected d_ff of BlockConfig in 1 ... 2^40, got 0"),
        ({"block": {"activation": "relu"}}, "expected the keys d_ff in LanguageModelConfig.block"),
        ({"block": 3}, "expected LanguageModelConfig.block to be dict, got 3"),
    ],
)
def test_wrong_data_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        from_dict(LanguageModelConfig, {**to_dict(make()), **change})
    assert message in str(caught.value)
