"""What holds for the costs of any model, against plain loops and against each other."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from qkvary.arch.blocks import Experts
from qkvary.arch.models import Model
from qkvary.costs.cache import layerwise_cache_bytes, model_cache_bytes, read_bytes
from qkvary.costs.decoding import decode_step
from qkvary.costs.formats import parse_format
from qkvary.costs.macs import MacCount, decode_macs, forward_macs
from qkvary.costs.parameters import active_parameters, model_parameters
from tests.conftest import examples
from tests.costs.model_strategies import CONTEXTS, FORMATS, models
from tests.reference import kept as stored

FEWER = examples(8)

ENCODED = st.integers(1, 9)
"""Tokens of an encoder, where a model has one that does not fix them."""


def encoder_tokens(model: Model, given_there: int) -> int:
    """Tokens that an encoder sees."""
    return 0 if model.encoder is None else model.encoder.tokens or given_there


@given(
    model=models(storages=True),
    context=st.integers(0, 23),
    stored_as=st.sampled_from(FORMATS),
    encoded=ENCODED,
)
def test_a_cache_is_what_plain_lists_keep(
    model: Model, context: int, stored_as: str, encoded: int
) -> None:
    seen = encoder_tokens(model, encoded)
    expected = stored.kept_bytes(model, context, stored_as, encoder_tokens=seen)
    call = {"context": context, "stored_as": stored_as, "encoder_tokens": encoded}
    assert layerwise_cache_bytes(model, **call) == expected  # type: ignore[arg-type]
    assert model_cache_bytes(model, **call) == sum(expected)  # type: ignore[arg-type]


@given(
    model=models(storages=True),
    context=CONTEXTS,
    stored_as=st.sampled_from(FORMATS),
    encoded=ENCODED,
)
def test_a_token_reads_what_plain_lists_read(
    model: Model, context: int, stored_as: str, encoded: int
) -> None:
    seen = encoder_tokens(model, encoded)
    expected = stored.read_bytes(model, context, stored_as, encoder_tokens=seen)
    found = read_bytes(model, context=context, stored_as=stored_as, encoder_tokens=encoded)
    assert found == expected


@FEWER
@given(
    model=models(), context=CONTEXTS, stored_as=st.sampled_from(FORMATS), batch=st.integers(1, 9)
)
def test_a_batch_reads_and_writes_as_often_as_it_has_sequences(
    model: Model, context: int, stored_as: str, batch: int
) -> None:
    form = parse_format(stored_as)
    call = {"context": context, "weights": parse_format("bf16"), "cache": form}
    one, many = (decode_step(model, batch=size, **call) for size in (1, batch))  # type: ignore[arg-type]
    assert many.cache_bytes == batch * one.cache_bytes
    assert many.written_bytes == batch * one.written_bytes
    assert many.macs == batch * one.macs
    assert one.weight_bytes <= many.weight_bytes <= batch * one.weight_bytes * (1 + 1e-9)
    own = dataclasses.replace(
        model, layers=tuple(dataclasses.replace(layer, cross=None) for layer in model.layers)
    )
    assert one.written_bytes == model_cache_bytes(own, context=1, stored_as=stored_as)


PLAIN = ("plus", "diagonal", "latent")


def decode_all(model: Model, tokens: int, encoded: int) -> MacCount:
    """The sum over all tokens of a sequence, decoded one by one."""
    steps = [
        decode_macs(model, context=context, encoder_tokens=encoded)
        for context in range(1, tokens + 1)
    ]
    return MacCount(
        **{
            part.name: sum(getattr(step, part.name) for step in steps)
            for part in dataclasses.fields(MacCount)
        }
    )


@FEWER
@given(
    model=models(kinds=("projected", "reader", "compressed"), without=PLAIN, encoders=False),
    tokens=CONTEXTS,
)
def test_decoding_multiplies_as_much_as_one_forward_pass(model: Model, tokens: int) -> None:
    """Summaries are pooled elementwise, so that compression is no exception."""
    assert decode_all(model, tokens, 1) == forward_macs(model, tokens=tokens)


@FEWER
@given(model=models())
def test_active_parameters_leave_out_idle_experts(model: Model) -> None:
    total, active = model_parameters(model).total, active_parameters(model)
    layers = (*model.layers, *(model.encoder.layers if model.encoder else ()))
    mixtures = [part for layer in layers for part in layer.feed_forward]
    idle = any(isinstance(part, Experts) and part.active < part.count for part in mixtures)
    assert (active < total) if idle else (active == total)
    assert active > 0
