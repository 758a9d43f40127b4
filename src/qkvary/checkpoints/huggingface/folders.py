"""Exports a language model as a folder for ``from_pretrained``, in our class or a stock class.

The folder is written atomically. Its manifest is verified by qkvary and ignored by transformers.
"""

import json
from typing import Any, Literal

from safetensors.torch import save as to_safetensors
from transformers import GenerationConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from qkvary.arch.canonical import not_counted
from qkvary.checkpoints.catalog import EXPORT_KIND
from qkvary.checkpoints.formats.transformers_folder import OWN_TOKENIZER
from qkvary.checkpoints.huggingface.causal import QKVForCausalLM
from qkvary.checkpoints.huggingface.fast_tokenizers import FastTokenizer, convert_tokenizer
from qkvary.checkpoints.huggingface.stock import StockExport, export_stock, list_targets
from qkvary.checkpoints.latent_networks import LATENT
from qkvary.checkpoints.models import TEMPLATE, ExportResult, LoadedModel, holds, write_folder
from qkvary.checkpoints.stock_names import StockArchitecture
from qkvary.checkpoints.structure import check_structure
from qkvary.data.tokenizers import Tokenizer
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.errors import UsageError
from qkvary.storage.jsonvalues import encode
from qkvary.storage.untrusted_files import StrPath, read_path

Target = StockArchitecture | Literal["transformers", "hf"]
"""The architecture of the export. ``transformers``: our own class. ``hf``: the class of
transformers that fits the network. Others: an architecture that every engine supports."""

HEADS = {"gpt_neox": "embed_out.weight"}
"""Names of the output head in files, by ``model_type``. Every other ``model_type`` uses the name
``lm_head.weight``."""


def export_folder(
    loaded: LoadedModel,
    path: StrPath,
    *,
    to: Target = "transformers",
    chat_template: str | None = None,
) -> ExportResult:
    """Write a model for transformers; an existing export is replaced.

    Raises:
        UsageError: if the class cannot express the network, a layer of the network was replaced, or
            ``path`` holds something other than an export.
        ResourceError: if the disk is full, broken or not writable.
    """
    path = read_path(path, "the path of a folder")
    if path.exists() and not holds(path, EXPORT_KIND):
        raise UsageError(f"{path} is not an export that qkvary wrote; it is not overwritten")
    check_structure(loaded.network)
    made = _wrap(loaded.network) if to == "transformers" else _translate(loaded.network, to)
    architecture = "".join(made.config.architectures or ())
    fast = None if loaded.tokenizer is None else convert_tokenizer(loaded.tokenizer)
    if loaded.tokenizer is not None:
        made.config.bos_token_id = loaded.tokenizer.beginning
        made.config.eos_token_id = loaded.tokenizer.separator
    files = {
        "config.json": made.config.to_json_string().encode(),
        "generation_config.json": _generation(loaded.tokenizer).encode(),
        "model.safetensors": to_safetensors(made.weights, metadata={"format": "pt"}),
    }
    if loaded.tokenizer is not None and fast is not None:
        files |= _describe_tokenizer(loaded.tokenizer, fast, loaded.network.config.max_tokens)
    if chat_template:
        files[TEMPLATE] = chat_template.encode()
    write_folder(path, files, {"kind": EXPORT_KIND, "architecture": architecture})
    return ExportResult(
        files={name: len(data) for name, data in files.items()},
        architecture=architecture,
        notes=(*made.notes, *(() if fast is None else fast.notes)),
    )


def _wrap(network: LanguageModel) -> StockExport:
    for part in not_counted(network.config):
        raise UsageError(
            f"expected a network without parts of your own, which transformers cannot import, got "
            f"{part}"
        )
    model = QKVForCausalLM.wrap(network)
    config = model.config
    config.architectures = [QKVForCausalLM.__name__]
    tensors = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    notes = ("call qkvary.checkpoints.huggingface.causal.register() before you load the export",)
    return StockExport(config, tensors, notes)


def _translate(network: LanguageModel, to: StockArchitecture | Literal["hf"]) -> StockExport:
    try:
        stock = export_stock(network, None if to == "hf" else to)
    except ValueError as error:
        fitting = ", ".join(list_targets(network.config))
        raise UsageError(f"{error}; choices of --to for this network: {fitting}") from None
    # Copies, because roles that share a projection share its memory.
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in stock.weights.items()}
    # vLLM gives every DeepSeek model a separate head, which stays zero unless the file has one.
    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[stock.config.model_type]
    if stock.config.tie_word_embeddings and stock.config.model_type != LATENT:
        # Stored once; transformers ties it again.
        del tensors[HEADS.get(stock.config.model_type, "lm_head.weight")]
    stock.config.architectures = [name]
    stock.config.dtype = network.embedding.dtype
    return stock._replace(weights=tensors)


def _generation(tokenizer: Tokenizer | None) -> str:
    config = GenerationConfig()
    if tokenizer is not None:
        ends = list(tokenizer.ends)
        config.bos_token_id = tokenizer.beginning
        config.eos_token_id = ends or None
        config.pad_token_id = tokenizer.separator
    return config.to_json_string()


def _describe_tokenizer(
    tokenizer: Tokenizer, fast: FastTokenizer, max_tokens: int
) -> dict[str, bytes]:
    about: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_tokens,
        "clean_up_tokenization_spaces": False,
        "bos_token": fast.beginning,
        "eos_token": fast.end,
        "pad_token": fast.end,
    }
    known = {name: value for name, value in about.items() if value is not None}
    return {
        "tokenizer.json": fast.library.to_str(pretty=True).encode(),
        "tokenizer_config.json": json.dumps(known, indent=2).encode(),
        OWN_TOKENIZER: encode(tokenizer.describe()).encode() + b"\n",
    }
