"""What every contract of attention runs over: each entry of the table with every meaning of heads.

Sizes are distinct. Weights are large enough that scores have a deviation of about 2: at the 0.02 of
an initialised network attention is so flat that mistakes hide.
"""

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from qkvary.arch.attention import AttentionConfig, PositionConfig, ValueRope
from qkvary.arch.caches import CacheOptions
from qkvary.arch.labels import format_label, parse_variant
from qkvary.arch.networks import (
    BlockConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    LanguageModelConfig,
    VisionTransformerConfig,
)
from qkvary.arch.table import VARIANTS
from qkvary.arch.terms import CORES, TERMS
from qkvary.arch.variants import Variant
from qkvary.nn.attention import Attention
from qkvary.nn.cache import KVCache, LayerCache
from qkvary.nn.encoder import Encoder
from qkvary.nn.encoder_decoder import EncoderDecoder
from qkvary.nn.language_model import LanguageModel
from qkvary.nn.vision_transformer import VisionTransformer
from tests.pairwise import pairwise

D_MODEL, HEADS, HEAD_DIM = 20, 4, 5
BATCH, TOKENS = 3, 7
WINDOW, STRIDE, REACH, PLUS_FEATURES, KEY_POSITIONS = 3, 2, 2, 10, 5
ROPE, LATENT = 4, 7

GATE = 1e-12
"""Of the deviation of what is compared; rounding is about 1e-14, mistakes are above 1e-6."""

NETWORKS: dict[Any, Any] = {
    LanguageModelConfig: LanguageModel,
    EncoderConfig: Encoder,
    VisionTransformerConfig: VisionTransformer,
    EncoderDecoderConfig: EncoderDecoder,
}
"""The class built from each configuration."""

COMBINED = (
    "(Q=K-V)+@rotary@w3@t0.5",
    "(Q-K=V/2)+@relative@t2.0",
    "(Q=K=V)+@diag-mean@t0.5",
    "Q=K=V@rotary@w3@diag-mean",
    "I-I-V@diag-norm@alibi",
    "Q[map]=K=V/2@rotary",
    "Q[map]=V/2@alibi",
    "Q[residual]-K=V/1@relative",
    "Q[residual-gelu]-K[r3]-V[d/4]/2",
    "(I-K=V/1)+@w3",
    "Q-I-I@rotary",
    "I-K=V@rotary",
    "I[map]-I-V",
    "(Q-K=V/2)+@relative@w3@s2",
    "Q=K=V@rotary@s2@diag-norm-unscaled@t0.5",
    "Q-K=V/1@alibi@w3@s2@t0.5@soft",
    "Q=K=V@relative@soft",
    "I-K=V@rotary@soft",
    "Q[map]=K=V/2@sima",
    "Q-K=V/2@rotary@key-bias@w3@t2.0",
    "Q=K=V@decoupled-4@kv-norm@t0.5",
    "I-K=V/2@decoupled-4@kv-norm@w3",
    "(Q[map]=K=V/1)+@decoupled-4@kv-norm",
    "Q[residual-gelu]-K[r3]=V@decoupled-4@kv-norm@s2",
    "QKV@alibi@decoupled-4",
    "Q-I-I@decoupled-4",
    "I-K=V/2@relative@latent-7",
    "(Q-K=V)+@decoupled-4@latent-7@w3",
    "Q=K=V@kv-norm@sima",
    "Q-K=V/1@rotary@kv-norm@w3@s2",
    "Q-K=V@kv-norm@soft",
    "Q-K=V/2@latent-7@soft",
    "Q=K=V@linear-softmax@decay-learned@undecayed-sum",
    "Q[map]=K=V/2@linear-relu@decay-fixed",
    "Q[residual-gelu]-K[r3]=V@kv-norm@linear-identity",
    "I-K=V@linear@unnormalised",
    "(GQA-2)+@rotary@qk-norm@cap2.0@w3@t0.5",
    "Q[map]=K-V/2@relative@qk-norm-wide",
    "I-K-V@rotary@qk-norm-wide@cap1.5",
    "Q[residual-gelu]-K[r3]-V/2@alibi@qk-norm@cap1.5@s2",
    "Q-I-V@qk-norm",
    "Q=V@qk-norm-wide@linear-relu@decay-learned",
    "Q=K=V@relative@diag-mean@cap2.0@key-bias",
    "Q[residual]-K-V@decoupled-4@qk-norm@cap3.0",
    "GQA-2@qk-norm@sima",
    "QKV@rotary@qk-norm-wide@soft",
)
"""Products that nobody wrote down: each option meets several others."""


TERM_LABELS = {
    term.name: {
        "plus": "(Q=K=V)+",
        "key_bias": "Q=K=V@key-bias",
        "diagonal": f"Q=K=V@diag-{term.values[0] if term.values else ''}",
        "temperature": "Q=K=V@t0.5",
        "kv_norm": "Q=K=V@kv-norm",
        "latent": f"Q-K=V@latent-{LATENT}",
        "decoupled": f"Q=K=V@decoupled-{ROPE}",
        "decay": "Q=K=V@linear@decay-learned",
        "head_norm": f"Q=K-V@{term.name}",
        "soft_cap": "Q=K=V@cap1.5",
    }.get(term.field, f"Q=K=V@{term.name}")
    for term in TERMS
}
"""A label with each score term and no other, by its name."""


def _with_heads(variant: Variant) -> list[Variant]:
    if variant.window is not None:
        # The table's window is longer than a test's sequence.
        variant = dataclasses.replace(variant, window=WINDOW)
    if variant.decoupled is not None:
        latent = None if variant.latent is None else LATENT
        variant = dataclasses.replace(variant, decoupled=ROPE, latent=latent)
    if variant.stride is not None:
        variant = dataclasses.replace(variant, stride=STRIDE)
    found = [variant]
    for heads in (2, 1) if variant.num_kv_heads is None else ():
        try:
            found.append(dataclasses.replace(variant, num_kv_heads=heads))
        except ValueError:
            # Refused by the configuration: a product without meaning (tests/arch holds which).
            continue
    return found


def _all_labels() -> list[str]:
    variants = [product for entry in VARIANTS for product in _with_heads(entry.variant)]
    variants += [parse_variant(label) for label in (*COMBINED, *TERM_LABELS.values())]
    return list(dict.fromkeys(format_label(variant) for variant in variants))


EVERY_LABEL = _all_labels()
"""The canonical label of every case."""

LABELS = [label for label in EVERY_LABEL if CORES[parse_variant(label).core].has_causal]
"""Those that have a causal form, and so a language model and a cache."""

BIDIRECTIONAL = [label for label in EVERY_LABEL if "decay" not in label]
"""Those that have a bidirectional form."""

FUSED = [label for label in LABELS if not re.search("@(diag|cap|soft(@|$))", label)]
"""Those that SDPA computes, and those that are summed up in chunks without a map of pairs."""

DECISIVE = ("QKV", "Q=K-V", "(Q=K-V)+", "Q-K=V", "GQA-2", "Q-MQA", "I-K=V", "Q=K=V@relative")
"""A few that between them use every part, for contracts that are slow."""


@functools.cache
def variant_fields(label: str) -> dict[str, Hashable]:
    """The parts of a variant; tests meet every pair of them."""
    variant = parse_variant(label)
    return {field.name: getattr(variant, field.name) for field in dataclasses.fields(variant)}


def variant_pairs(names: str, *options: Iterable[Any], together: int = 2) -> pytest.MarkDecorator:
    """Parametrizes a test with labels and further options; the default run takes every pair.

    Args:
        names: The parameters, ``label`` among them.
        options: The values of each.
        together: 1 for every value instead of every pair.
    """
    fields = {"label": variant_fields}
    return pairwise(names, itertools.product(*options), fields=fields, together=together)


variant_values = functools.partial(variant_pairs, together=1)
"""For what attention computes elsewhere too: what it computes is tested with every pair."""


def distance(found: Tensor, expected: Tensor) -> float:
    """The largest difference over the root mean square of what is expected; infinite for a NaN."""
    scale = expected.detach().square().mean().sqrt()
    largest = float((found - expected).detach().abs().max() / scale)
    # max() of Python forgets a NaN that is not its first argument.
    return math.inf if math.isnan(largest) else largest


def make_config(
    label: str, *, causal: bool, value_rope: ValueRope = "counter", **fields: object
) -> AttentionConfig:
    """The attention layer of a case."""
    position = PositionConfig(
        plus_features=PLUS_FEATURES,
        relative_distance=REACH,
        value_rope=value_rope,
        key_positions=KEY_POSITIONS,
    )
    given: dict[str, object] = {"position": position, "kernel": "explicit", **fields}
    variant = parse_variant(label)
    if variant.diagonal != "none" or variant.soft_cap or variant.core != "softmax":
        # The fused kernel is refused: it does not return scores. A state has another form.
        fused = variant.keeps_state and given["kernel"] == "sdpa"
        given["kernel"] = "auto" if fused else "explicit"
    return AttentionConfig(
        d_model=D_MODEL,
        num_heads=HEADS,
        variant=variant,
        # A core without a causal form is bidirectional in every case, and a decay is causal.
        causal=(causal or variant.decay != "none") and CORES[variant.core].has_causal,
        **given,  # type: ignore[arg-type]
    )


def randomize(module: nn.Module, seed: int) -> None:
    """Fill every parameter: matrices keep deviations, and nothing is zero or one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            fan_in = parameter.shape[-1] if parameter.dim() > 1 else 4
            gain = 1.4 if "k_proj" in name or "q_proj" in name else 1.0
            std = gain / math.sqrt(fan_in)
            center = 1.0 if name.endswith("norm.weight") else 0.0
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(center + std * noise)


def make_layer(label: str, *, causal: bool = True, **fields: Any) -> Attention:
    """The attention layer of a case in float64, with weights that make a difference."""
    layer = Attention(make_config(label, causal=causal, **fields)).double()
    randomize(layer, seed=31)
    return layer


def random_input(seed: int, *, tokens: int = TOKENS, batch: int = BATCH) -> Tensor:
    """Layer inputs of deviation 1 in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, tokens, D_MODEL, generator=generator, dtype=torch.float64)


CODED = [
    CacheOptions(storage="int8", group=3),
    CacheOptions(storage="int4", group=3, residual=2),
    CacheOptions(storage="int8", group=5, rotate=True),
    CacheOptions(storage="int4", scales="channel", block=2),
    CacheOptions(storage="int3", scales="channel", block=3, residual=1, rotate=True),
    CacheOptions(storage="int3", scales="channel", block=2, residual=1),
]
"""Every way to keep a cache as codes."""


def options_id(options: object) -> str | None:
    """Return the test id of cache options."""
    if not isinstance(options, CacheOptions):
        return None
    return f"{options.storage}-{options.scales}-{options.residual}-{options.rotate}"


CUTS = st.sets(st.integers(1, TOKENS - 1), min_size=1).map(lambda cuts: [0, *sorted(cuts), TOKENS])
"""The positions at which a text is cut into two chunks or more."""


def feed(
    layer: Attention, x: Tensor, cuts: list[int], cache: LayerCache, **whole: Tensor
) -> Tensor:
    """The outputs of all tokens, fed chunk by chunk; masks cover what is cached and new."""
    outputs: list[Tensor] = []
    with torch.no_grad():
        for start, stop in itertools.pairwise(cuts):
            call = {name: tensor[:, :stop] for name, tensor in whole.items()}
            outputs.append(layer(x[:, start:stop], cache=cache, **call))
    return torch.cat(outputs, dim=1)


def feed_network(
    network: nn.Module, tokens: Tensor, sizes: int | Sequence[int], cache: KVCache
) -> Tensor:
    """The logits of all tokens, fed chunk by chunk."""
    with torch.no_grad():
        parts = [network(part, cache=cache) for part in tokens.split(sizes, dim=1)]  # type: ignore[arg-type]
    return torch.cat(parts, dim=1)


def padding_mask() -> Tensor:
    """A full row, two tokens of padding on the left, one on the right."""
    mask = torch.ones(BATCH, TOKENS, dtype=torch.bool)
    mask[1, :2] = False
    mask[2, -1] = False
    return mask


def documents() -> Tensor:
    """One document, two, and three in a row; the padding of row 1 belongs to its first one."""
    return torch.tensor([[0] * 7, [0, 0, 0, 0, 1, 1, 1], [4, 4, 2, 2, 2, 5, 5]])


MASKED: dict[str, Any] = {"attention_mask": padding_mask(), "document_ids": documents()}
IN_REFERENCE = {"attention_mask": "mask", "document_ids": "documents", "positions": "positions"}
"""The reference loops' names for the arguments of each module."""


def gradients(named: Mapping[str, Tensor]) -> Tensor:
    """All gradients in one vector; a parameter without influence has none, or zeros."""
    tensors = [named[name] for name in sorted(named)]
    return torch.cat(
        [(torch.zeros_like(t) if t.grad is None else t.grad).flatten() for t in tensors]
    )


def outcome(
    run: Callable[[Tensor], Tensor], parameters: Mapping[str, Tensor], given: Tensor, **call: Any
) -> tuple[Tensor, Tensor]:
    """The outputs of real tokens, and the gradients of parameters and input by some loss."""
    x = given.clone().requires_grad_(given.is_floating_point())
    output, mask = run(x), call.get("attention_mask")
    if mask is not None and output.dim() > 2:
        output = output * mask[..., None]
    drawn = torch.Generator().manual_seed(47)
    (output * torch.randn(output.shape, generator=drawn).double()).sum().backward()
    return output, gradients({**parameters, **({"input": x} if x.requires_grad else {})})


def compare(
    module: nn.Module, reference: Callable[..., Tensor], given: Tensor, **call: Tensor | None
) -> float:
    """The largest relative difference of outputs and of all gradients between nn and reference."""
    randomize(module.double(), seed=31)
    own = dict(module.named_parameters())
    copies = {name: one.detach().clone().requires_grad_() for name, one in own.items()}
    known = {IN_REFERENCE[name]: one for name, one in call.items() if one is not None}
    found = outcome(lambda x: module(x, **call), own, given, **call)
    loops = functools.partial(reference, module.config, copies, **known)
    return max(map(distance, found, outcome(loops, copies, given, **call)))


def make_language_model_config(label: str, **fields: object) -> LanguageModelConfig:
    """A small language model of a case."""
    given: dict[str, object] = {"positions": "none", "block": BlockConfig(d_ff=11), **fields}
    return LanguageModelConfig(
        attention=make_config(label, causal=True),
        num_layers=2,
        vocabulary=13,
        max_tokens=17,
        **given,  # type: ignore[arg-type]
    )


def make_vision_config(label: str, **fields: Any) -> VisionTransformerConfig:
    """A small network of images of a case."""
    sizes = {"image_size": 6, "patch_size": 2, "channels": 3, "classes": 11}
    given: dict[str, Any] = {
        "block": BlockConfig(d_ff=11, dropout=0.1),
        "num_layers": 1,
        **sizes,
        **fields,
    }
    return VisionTransformerConfig(attention=make_config(label, causal=False), **given)


def make_encoder_config(label: str, **fields: object) -> EncoderConfig:
    """A small encoder of a case."""
    return EncoderConfig(
        attention=make_config(label, causal=False),
        block=BlockConfig(d_ff=11, activation="relu", norm_placement="post"),
        num_layers=2,
        vocabulary=13,
        max_tokens=17,
        classes=6,
        **fields,  # type: ignore[arg-type]
    )
