"""The costs of candidates are the figures of the papers."""

from collections.abc import Sequence
from typing import Any

from qkvary.arch.models import as_model
from qkvary.arch.named_networks import gpt_300m
from qkvary.costs.comparison import CostRow, compare_model
from qkvary.costs.formats import parse_format
from tests.costs.toy_models import encoder_decoder_model

BF16, INT8 = parse_format("bf16"), parse_format("int8")


def rows_of(*arguments: Any, **fields: Any) -> Sequence[CostRow]:
    given: dict[str, Any] = {"context": 29, "batch": 3, "weights": BF16, "cache": BF16}
    return compare_model(*arguments, **(given | fields)).rows


def test_the_papers_networks_in_all_conventions() -> None:
    found = rows_of(as_model(gpt_300m()), ["Q-K=V", "MQA"], context=2048, batch=1)
    rows = {row.candidate.name: row for row in found}
    base = rows["QKV"]
    assert base.parameters.total == base.active_parameters == 305_534_976
    assert base.weight_bytes == 611_069_952
    assert base.square_macs.total == 792_689_901_568
    assert base.training_macs_per_token == 3 * 706_832_498_688 / 2048
    # A prompt needs logits for its last token only.
    head = 50_304 * 1024
    assert base.prefill_macs.total == 706_832_498_688 - 2047 * head
    assert base.decode_macs.total == 20 * (12 * 1024**2 + 2 * 2048 * 1024) + head
    assert (base.cache_bytes_per_token, base.cache_growth_bytes_per_token) == (81_920, 81_920)
    assert base.cache_bytes == 2048 * 81_920
    assert rows["QKV, layer input"].cache_bytes == rows["Q-K=V"].cache_bytes == 2048 * 40_960
    assert rows["QKV, layer input"].parameters == base.parameters
    assert rows["MQA"].cache_bytes == 2048 * 5_120


def test_an_encoder_counts_once_for_a_prompt_and_not_for_a_token() -> None:
    few, many = (rows_of(encoder_decoder_model(), encoder_tokens=seen)[0] for seen in (10, 20))
    assert many.prefill_macs.total > few.prefill_macs.total
    assert many.decode_macs.projections == few.decode_macs.projections
    assert many.decode_macs.scores - few.decode_macs.scores == 2 * 10 * 2 * 24
