"""Wraps our language models for ``transformers``: ``Auto`` classes, ``generate``, safetensors.

Importing this module registers nothing; call ``register()`` once. The module overrides only one
private method of transformers, ``_prepare_cache_for_generation``.
"""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from qkvary.arch.caches import CacheOptions
from qkvary.arch.canonical import from_dict, to_dict
from qkvary.arch.networks import LanguageModelConfig
from qkvary.checkpoints.huggingface.cache import NetworkCache
from qkvary.nn.language_model import LanguageModel

FORMAT = 1

_MARK = "_is_hf_initialized"
"""The attribute that transformers sets on initialised parameters."""
_STATIC = ("static", "offloaded_static")
_QUANTIZED_KEYS = {"nbits", "q_group_size", "residual_length"}


class QKVConfig(PreTrainedConfig):
    """The configuration of a language model, in the form that ``arch.canonical`` writes."""

    model_type: ClassVar[str] = "qkvary"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    network: dict[str, Any] | None = None
    """The network's configuration, made by ``to_dict`` from a ``LanguageModelConfig``."""
    network_format: int = FORMAT
    use_cache: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        if self.network_format != FORMAT:
            raise ValueError(
                f"expected network_format {FORMAT}, got {self.network_format}, which another "
                "version of qkvary wrote"
            )
        if self.network is not None:
            self.tie_word_embeddings = self.language_model.tied_head
        super().__post_init__(**kwargs)

    @classmethod
    def of(cls, network: LanguageModelConfig) -> Self:
        """Return the configuration of a network."""
        return cls(network=to_dict(network))

    @property
    def language_model(self) -> LanguageModelConfig:
        """The configuration of the network."""
        if self.network is None:
            raise ValueError("expected a configuration with a network, got an empty one")
        return from_dict(LanguageModelConfig, self.network)

    @property
    def vocab_size(self) -> int:
        """The number of distinct tokens."""
        return self.language_model.vocabulary

    @property
    def hidden_size(self) -> int:
        """The width of the residual stream."""
        return self.language_model.d_model

    @property
    def num_hidden_layers(self) -> int:
        """The number of layers."""
        return self.language_model.num_layers

    @property
    def num_attention_heads(self) -> int:
        """The number of query heads of the first layer."""
        return self.language_model.layers[0].num_heads

    @property
    def max_position_embeddings(self) -> int:
        """The maximum sequence length."""
        return self.language_model.max_tokens


class QKVForCausalLM(PreTrainedModel, GenerationMixin):
    """A ``LanguageModel`` with the interface of a ``transformers`` model.

    Positions follow from the attention mask: they count from the first real token of a row.
    """

    config_class = QKVConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    # Not a ClassVar, because transformers declares an instance attribute.
    _no_split_modules = ["Block"]  # noqa: RUF012

    def __init__(self, config: QKVConfig) -> None:
        super().__init__(config)
        self.network = LanguageModel(config.language_model)
        _mark(parameter for parameter in self.network.parameters() if not parameter.is_meta)
        self.post_init()

    @classmethod
    def wrap(cls, network: LanguageModel) -> Self:
        """Return a model that shares the weights of a network."""
        with torch.device("meta"):
            model = cls(QKVConfig.of(network.config))
        model.network = network
        model.config.dtype = network.embedding.dtype
        return model.train(network.training)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Compute logits, and the loss if labels are given.

        Args:
            input_ids: The tokens after those in the cache.
            attention_mask: 1 for real tokens, 0 for padding, over cached and new tokens.
            past_key_values: The cache from ``make_cache`` or an earlier call.
            labels: The input tokens, with -100 where the loss ignores them. This method shifts them
                by one.
            use_cache: Whether to start a cache if none is given.
            logits_to_keep: The number of last positions that get logits (0: all), or their indices.
            kwargs: ``num_items_in_batch`` for the loss.

        Raises:
            ValueError: for an unsupported argument, or a cache that is not a ``NetworkCache``.
        """
        items = kwargs.pop("num_items_in_batch", None)
        _refuse_unknown(kwargs)
        cache = self._choose_cache(past_key_values, use_cache)
        features = self.network.features(
            input_ids, cache=None if cache is None else cache.kv, attention_mask=attention_mask
        )
        if cache is not None:
            cache.set_batch(input_ids)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.network.head(features[:, kept])
        loss = None
        if labels is not None:
            measure = cast("Any", self.loss_function)
            loss = measure(logits, labels, self.config.vocab_size, num_items_in_batch=items)
        return CausalLMOutputWithPast(
            loss=cast("Any", loss), logits=cast("Any", logits), past_key_values=cache
        )

    def make_cache(
        self, *, max_tokens: int | None = None, options: CacheOptions | None = None
    ) -> NetworkCache:
        """Make an empty cache for ``past_key_values``.

        Args:
            max_tokens: The maximum number of tokens. By default the number is unlimited. If the
                rotation of the network's keys depends on the length, it is the network's maximum.
            options: The options of the cache.
        """
        network = cast("QKVConfig", self.config).language_model
        if max_tokens is None and _turns_by_length(network):
            max_tokens = network.max_tokens
        return NetworkCache(network, max_tokens=max_tokens, options=options)

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding as a layer that shares the network's weight."""
        weight = self.network.embedding
        layer = nn.Embedding(weight.shape[0], weight.shape[1], device="meta")
        layer.weight = weight
        return layer

    def get_output_embeddings(self) -> nn.Module:
        """Return the output head as a layer that shares the network's weights."""
        network = self.network
        weight = network.embedding if network.head_weight is None else network.head_weight
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
        layer.weight, layer.bias = weight, cast("Any", network.head_bias)
        return layer

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Refuse to replace the embedding: its size is part of the network's configuration."""
        raise ValueError(f"expected an unchanged embedding, got {type(value).__name__}")

    def _choose_cache(self, given: Cache | None, use_cache: bool | None) -> NetworkCache | None:
        if isinstance(given, NetworkCache):
            return given
        if given is not None:
            raise ValueError(
                f"expected a cache from make_cache(), got {type(given).__name__}, which stores a "
                "tensor twice if key and value share it"
            )
        start = (self.config.use_cache and not self.training) if use_cache is None else use_cache
        return self.make_cache() if start else None

    # transformers passes a module, but all modules are initialised at once.
    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:  # noqa: ARG002
        """Initialise all parameters that were not loaded; later calls have no effect."""
        missing = {
            name: parameter
            for name, parameter in self.network.named_parameters()
            if not getattr(parameter, _MARK, False) and not parameter.is_meta
        }
        if missing:
            first = dict(LanguageModel(self.network.config).named_parameters())
            for name, parameter in missing.items():
                parameter.copy_(first[name])
            _mark(missing.values())

    def _prepare_cache_for_generation(
        self,
        generation_config: Any,
        model_kwargs: dict[str, Any],
        generation_mode: Any,
        batch_size: int,
        max_cache_length: int,
    ) -> bool:
        kind = generation_config.cache_implementation
        if model_kwargs.get("past_key_values") is not None or not generation_config.use_cache:
            # Type checkers do not find the method of transformers' mixin.
            return super()._prepare_cache_for_generation(  # pyright: ignore[reportAttributeAccessIssue]
                generation_config, model_kwargs, generation_mode, batch_size, max_cache_length
            )
        network = cast("QKVConfig", self.config).language_model
        most = max_cache_length if _turns_by_length(network) else None
        options = None
        if kind in _STATIC:
            most = max(max_cache_length, generation_config.max_cache_len or 0)
            options = CacheOptions(storage="preallocated")
        elif kind == "quantized":
            options = _read_quantized(generation_config.cache_config or {})
        elif kind == "offloaded":
            raise ValueError(
                "expected a cache_implementation that keeps the cache on the network's device, got "
                "offloaded; choices: dynamic, static, quantized"
            )
        cache = self.make_cache(max_tokens=most, options=options)
        if generation_config.is_assistant:
            # In assisted decoding, tokens that the main model rejects are removed from the cache.
            cache.activate_past_recording()
        model_kwargs["past_key_values"] = cache
        return True


def register() -> None:
    """Register our networks with ``AutoConfig`` and ``AutoModelForCausalLM``; idempotent."""
    AutoConfig.register(QKVConfig.model_type, QKVConfig, exist_ok=True)
    AutoModelForCausalLM.register(QKVConfig, QKVForCausalLM, exist_ok=True)


def _turns_by_length(network: LanguageModelConfig) -> bool:
    return any(layer.turns_by_length for layer in network.layers)


def _mark(parameters: Iterable[Tensor]) -> None:
    for parameter in parameters:
        setattr(parameter, _MARK, True)


def _refuse_unknown(kwargs: Mapping[str, Any]) -> None:
    unknown = [name for name, value in kwargs.items() if value is not None and value is not False]
    if unknown:
        raise ValueError(
            f"expected no unknown arguments, got {', '.join(unknown)}; choices: input_ids, "
            "attention_mask, past_key_values, labels, use_cache, logits_to_keep"
        )


def _read_quantized(config: Mapping[str, Any]) -> CacheOptions:
    unknown = set(config) - _QUANTIZED_KEYS
    bits = config.get("nbits", 4)
    if unknown or bits not in {4, 8}:
        raise ValueError(
            f"expected a cache_config of nbits 4 or 8, q_group_size and residual_length, got "
            f"{dict(config)}"
        )
    return CacheOptions(
        storage="int8" if bits == 8 else "int4",
        group=config.get("q_group_size", 64),
        residual=config.get("residual_length", 128),
    )
