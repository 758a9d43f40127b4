"""What a figure belongs to: these weights, this tokenizer, in this number format."""

import hashlib
from dataclasses import dataclass

import torch

from qkvary.arch.canonical import canonical_json
from qkvary.data.tokenizers import Tokenizer
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.jsonvalues import encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Any change of the network or of its tokens changes one of these."""

    network_sha256: str
    """Of the configuration, and of every weight with its name, number format and shape."""
    tokenizer_sha256: str | None
    """Of what describes the tokenizer; ``None`` where there is none."""
    dtype: str
    """In which it was computed."""


def identify(model: LanguageModel, tokenizer: Tokenizer | None) -> Identity:
    """Digest a network and its tokenizer."""
    digest = hashlib.sha256(canonical_json(model.config).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        # As bytes: numpy knows no bfloat16.
        flat = tensor.detach().cpu().contiguous().flatten()
        digest.update(flat.view(dtype=torch.uint8).numpy())
    described = None if tokenizer is None else encode(tokenizer.describe()).encode()
    return Identity(
        network_sha256=digest.hexdigest(),
        tokenizer_sha256=None if described is None else hashlib.sha256(described).hexdigest(),
        dtype=str(model.embedding.dtype).removeprefix("torch."),
    )
