"""Llama and its descendants: what files say with nulls, or leave out.

Windows and experts of every file that transformers builds are compared in contracts.
"""

from qkvary.arch.blocks import Experts, FeedForward, ProjectedAttention
from qkvary.arch.models import Model
from qkvary.costs.parameters import model_parameters
from tests.arch.families.config_files import read, read_without


def windows(model: Model) -> set[int | None]:
    attentions = [layer.attention for layer in model.layers]
    return {one.config.variant.window for one in attentions if isinstance(one, ProjectedAttention)}


def test_qwen_has_no_windows_by_default() -> None:
    on = {"use_sliding_window": True, "sliding_window": 1000, "max_window_layers": 20}
    assert windows(read("qwen2.5-0.5b", **on)) == {None, 1000}
    # 28 full layers are more than there are.
    assert windows(read("qwen2.5-0.5b", **{**on, "max_window_layers": None})) == {None}
    assert windows(read("qwen2.5-0.5b", **{**on, "sliding_window": None})) == {None}
    assert windows(read("qwen2.5-0.5b", **{**on, "use_sliding_window": None})) == {None}


def test_dense_layers_among_experts() -> None:
    # Files whose layers all have experts need no width of dense ones.
    experts = read_without("qwen3-30b-a3b", "intermediate_size")
    assert model_parameters(experts).total == 30_532_122_624
    assert all(isinstance(layer.feed_forward[0], Experts) for layer in experts.layers)
    # And files without experts no number of them.
    none = read("qwen3-30b-a3b", mlp_only_layers=[*range(48), 99], num_experts=None)
    assert all(isinstance(layer.feed_forward[0], FeedForward) for layer in none.layers)


def test_a_null_counts_as_absent() -> None:
    assert read("qwen3-0.6b", head_dim=None) == read_without("qwen3-0.6b", "head_dim")
