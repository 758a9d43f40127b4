"""Our small networks as models of transformers, and the decoding that they are held to."""

import torch
from torch import Tensor

from qkvary.checkpoints.huggingface.causal import QKVForCausalLM
from qkvary.nn.cache import KVCache
from qkvary.nn.language_model import LanguageModel
from tests.contracts.variant_cases import DECISIVE, make_language_model_config, randomize

LABELS = (*DECISIVE, "QKV@w3", "Q-K=V@w3", "Q-K=V@rotary", "Q-K=V@alibi", "Q-GQA-2@linear")
"""The decisive variants, windows and positions of every kind, and one that keeps a state."""
VOCABULARY, PADDING = 13, 0


def make_network(label: str, dtype: torch.dtype = torch.float64, **fields: object) -> LanguageModel:
    network = LanguageModel(make_language_model_config(label, **fields)).to(dtype)
    randomize(network, 5)
    return network.eval()


def make_model(label: str, **fields: object) -> QKVForCausalLM:
    return QKVForCausalLM.wrap(make_network(label, **fields))


def prompt(rows: int, length: int, *, seed: int = 0) -> Tensor:
    """Tokens, none of which is padding."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, VOCABULARY, (rows, length), generator=generator)


def left_padding(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of different lengths: the tokens and the mask."""
    mask = torch.ones_like(ids)
    for row in range(len(ids)):
        mask[row, : 2 * row] = 0
    return ids * mask, mask


@torch.no_grad()
def decode_greedily(network: LanguageModel, ids: Tensor, mask: Tensor, steps: int) -> Tensor:
    """Our own decoding: one call for the prompt, one for every token."""
    cache, new = KVCache(network.config.layers), ids
    for _ in range(steps):
        logits = network(new, cache=cache, attention_mask=mask)
        new = logits[:, -1:].argmax(dim=-1)
        ids = torch.cat((ids, new), dim=1)
        mask = torch.nn.functional.pad(mask, (0, 1), value=1)
    return ids
