"""The identity of an evaluated network: weights, tokenizer and dtype."""

import hashlib
from dataclasses import dataclass

import torch

from qkvary.arch.canonical import canonical_json
from qkvary.data.tokenizers import Tokenizer
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.jsonvalues import encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The digests by which a network and its tokenizer are recognised."""

    network_sha256: str
    """The digest of the configuration and of every weight with its name, dtype and shape."""
    tokenizer_sha256: str | None
    dtype: str


def identify(model: LanguageModel, tokenizer: Tokenizer | None) -> Identity:
    """Compute the digests of a network and its tokenizer."""
    digest = hashlib.sha256(canonical_json(model.config).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        # As bytes: numpy has no bfloat16.
        flat = tensor.detach().cpu().contiguous().flatten()
        digest.update(flat.view(dtype=torch.uint8).numpy())
    described = None if tokenizer is None else encode(tokenizer.describe()).encode()
    return Identity(
        network_sha256=digest.hexdigest(),
        tokenizer_sha256=None if described is None else hashlib.sha256(described).hexdigest(),
        dtype=str(model.embedding.dtype).removeprefix("torch."),
    )
