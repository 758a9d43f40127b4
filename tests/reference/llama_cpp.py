"""llama.cpp by another hand: its graphs in float64 and its tokenizers, read by ``gguf``.

Written after llama.cpp's src/models and src/llama-vocab.cpp. It shares no code with ``src``; the
package ``gguf`` is the one of llama.cpp itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import regex
from numpy.typing import NDArray

Array = NDArray[np.float64]
_TANH = math.sqrt(2 / math.pi)
GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA_WORDS = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass
class File:
    """The values and tensors of a file."""

    architecture: str
    values: dict[str, Any]
    tensors: dict[str, Array]
    types: dict[str, str] = field(default_factory=dict[str, str])

    def size(self, name: str) -> Any:
        return self.values[f"{self.architecture}.{name}"]


def read_file(path: Path) -> File:
    """A file as llama.cpp's own package reads it."""
    reader = gguf.GGUFReader(path)
    values: dict[str, Any] = {name: found.contents() for name, found in reader.fields.items()}
    tensors: dict[str, Array] = {
        one.name: gguf.quants.dequantize(one.data, one.tensor_type)
        .reshape(tuple(int(size) for size in reversed(one.shape)))
        .astype(np.float64)
        for one in reader.tensors
    }
    types = {one.name: one.tensor_type.name for one in reader.tensors}
    return File(values["general.architecture"], values, tensors, types)


def logits(file: File, tokens: list[int]) -> Array:
    """The logits after every token."""
    return {"llama": _llama, "gpt2": _gpt2, "deepseek2": _deepseek}[file.architecture](file, tokens)


def _gpt2(file: File, tokens: list[int]) -> Array:
    """Stock llama.cpp has the tanh form of GELU; this has the exact one where a file names it."""
    w, heads = file.tensors, file.size("attention.head_count")
    linear = partial(apply, w)
    norm = partial(layer_norm, w, file.size("attention.layer_norm_epsilon"))
    x = w["token_embd.weight"][tokens] + w["position_embd.weight"][: len(tokens)]
    erf, is_exact = np.vectorize(math.erf), file.values.get("qkvary.gelu") == "erf"
    for layer in range(file.size("block_count")):
        at = f"blk.{layer}"
        q, k, v = np.split(linear(norm(x, f"{at}.attn_norm"), f"{at}.attn_qkv"), 3, axis=-1)
        x = x + linear(attend(q, k, v, heads, heads), f"{at}.attn_output")
        up = linear(norm(x, f"{at}.ffn_norm"), f"{at}.ffn_up")
        inner = erf(up / math.sqrt(2)) if is_exact else np.tanh(_TANH * (up + 0.044715 * up**3))
        x = x + linear(up * (1 + inner) / 2, f"{at}.ffn_down")
    return norm(x, "output_norm") @ w.get("output.weight", w["token_embd.weight"]).T


def _llama(file: File, tokens: list[int]) -> Array:
    w, linear = file.tensors, partial(apply, file.tensors)
    heads, kv_heads = file.size("attention.head_count"), file.size("attention.head_count_kv")
    epsilon, base = file.size("attention.layer_norm_rms_epsilon"), file.size("rope.freq_base")

    def turned(x: Array) -> Array:
        divisors = w.get("rope_freqs.weight")
        return turn(x, np.arange(len(tokens)), file.size("rope.dimension_count"), base, divisors)

    x = w["token_embd.weight"][tokens]
    for layer in range(file.size("block_count")):
        at = f"blk.{layer}"
        read = rms(x, w[f"{at}.attn_norm.weight"], epsilon)
        q, k, v = (linear(read, f"{at}.attn_{name}") for name in "qkv")
        x = x + linear(attend(turned(q), turned(k), v, heads, kv_heads), f"{at}.attn_output")
        x = x + _gated(rms(x, w[f"{at}.ffn_norm.weight"], epsilon), w, at)
    head = w.get("output.weight", w["token_embd.weight"])
    return rms(x, w["output_norm.weight"], epsilon) @ head.T


def _deepseek(file: File, tokens: list[int]) -> Array:
    """Latent attention with absorbed matrices: one key for all heads, and the value inside it."""
    w, heads = file.tensors, file.size("attention.head_count")
    epsilon, base = file.size("attention.layer_norm_rms_epsilon"), file.size("rope.freq_base")
    rope, width = file.size("rope.dimension_count"), file.size("attention.kv_lora_rank")
    length = file.size("attention.key_length_mla")
    assert file.size("attention.q_lora_rank") == file.size("expert_count") == 0
    assert file.size("attention.head_count_kv") == 1
    assert file.size("attention.key_length") == width + rope
    assert file.size("attention.value_length") == width
    assert file.size("leading_dense_block_count") == file.size("block_count")
    positions = np.arange(len(tokens))
    x = w["token_embd.weight"][tokens]
    for layer in range(file.size("block_count")):
        at = f"blk.{layer}"
        read = rms(x, w[f"{at}.attn_norm.weight"], epsilon)
        queries = np.split(read @ w[f"{at}.attn_q.weight"].T, heads, axis=-1)
        both = read @ w[f"{at}.attn_kv_a_mqa.weight"].T
        latent = rms(both[:, :width], w[f"{at}.attn_kv_a_norm.weight"], epsilon)
        key = np.hstack([latent, turn(both[:, width:], positions, rope, base, None)])
        mixed: list[Array] = []
        for head, query in enumerate(queries):
            content, turned = np.split(query, [length - rope], axis=-1)
            content = content @ w[f"{at}.attn_k_b.weight"][head].T
            absorbed = np.hstack([content, turn(turned, positions, rope, base, None)])
            odds = softmax(absorbed @ key.T / math.sqrt(length))
            mixed.append(odds @ latent @ w[f"{at}.attn_v_b.weight"][head].T)
        x = x + np.concatenate(mixed, axis=-1) @ w[f"{at}.attn_output.weight"].T
        x = x + _gated(rms(x, w[f"{at}.ffn_norm.weight"], epsilon), w, at)
    head_weight = w.get("output.weight", w["token_embd.weight"])
    return rms(x, w["output_norm.weight"], epsilon) @ head_weight.T


def _gated(x: Array, w: dict[str, Array], at: str) -> Array:
    gate, up = (apply(w, x, f"{at}.ffn_{name}") for name in ("gate", "up"))
    return apply(w, gate / (1 + np.exp(-gate)) * up, f"{at}.ffn_down")


def apply(w: Mapping[str, Array], x: Array, name: str) -> Array:
    """A matrix, with its bias where there is one."""
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)


def layer_norm(w: Mapping[str, Array], epsilon: float, x: Array, name: str) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + epsilon)
    return centred / deviation * w[f"{name}.weight"] + w[f"{name}.bias"]


def rms(x: Array, gain: Array, epsilon: float) -> Array:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + epsilon) * gain


def turn(x: Array, positions: Any, size: int, base: float, divisors: Array | None) -> Array:
    """Rotate neighbouring channels of every head of this size."""
    result = x.copy()
    for start in range(0, x.shape[-1], size):
        for pair in range(size // 2):
            divisor = 1.0 if divisors is None else divisors[pair]
            angle = positions * base ** (-2 * pair / size) / divisor
            first, second = start + 2 * pair, start + 2 * pair + 1
            cos, sin = np.cos(angle), np.sin(angle)
            result[:, first] = x[:, first] * cos - x[:, second] * sin
            result[:, second] = x[:, first] * sin + x[:, second] * cos
    return result


def attend(q: Array, k: Array, v: Array, heads: int, kv_heads: int) -> Array:
    queries = np.split(q, heads, axis=-1)
    keys, values = np.split(k, kv_heads, axis=-1), np.split(v, kv_heads, axis=-1)
    group = heads // kv_heads
    mixed = [
        softmax(query @ keys[index // group].T / math.sqrt(query.shape[-1]))
        @ values[index // group]
        for index, query in enumerate(queries)
    ]
    return np.concatenate(mixed, axis=-1)


def softmax(scores: Array) -> Array:
    scores = np.where(np.tril(np.ones_like(scores)) > 0, scores, -np.inf)
    odds = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return odds / odds.sum(axis=-1, keepdims=True)


def nats(rows: Array, targets: Iterable[int]) -> list[float]:
    """The loss of every target by the logits before it."""
    shares = np.exp(rows - rows.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    return [-math.log(row[target]) for row, target in zip(shares, targets, strict=True)]


def tokenize(file: File, text: str) -> list[int]:
    """The tokens of a text, special ones taken for ordinary text."""
    values = {name.removeprefix("tokenizer.ggml."): one for name, one in file.values.items()}
    start = [values["bos_token_id"]] if values["add_bos_token"] else []
    encode = {"rwkv": _match, "gpt2": _merge_pairs, "llama": merge_pieces}[values["model"]]
    return start + (encode(values, text) if text else [])


def _match(values: dict[str, Any], text: str) -> list[int]:
    """The longest token that the rest begins with, each time."""

    def unescape(token: str) -> bytes:
        return regex.sub(
            rb"\\(x..|.)",
            lambda m: bytes.fromhex(m[1][1:].decode()) if m[1][:1] == b"x" else m[1],
            token.encode(),
        )

    known = {unescape(token): number for number, token in enumerate(values["tokens"])}
    data, found = text.encode(), list[int]()
    while data:
        token = max((one for one in known if data.startswith(one)), key=len)
        found.append(known[token])
        data = data[len(token) :]
    return found


def _merge_pairs(values: dict[str, Any], text: str) -> list[int]:
    """In every word the pair of the earliest merge, each time."""
    known = {token: number for number, token in enumerate(values["tokens"])}
    ranks = {tuple(one.split(" ")): rank for rank, one in enumerate(values["merges"])}
    pattern = {"gpt-2": GPT2_WORDS, "llama-bpe": LLAMA_WORDS, "dbrx": LLAMA_WORDS}[values["pre"]]
    found: list[int] = []
    for word in regex.findall(pattern, text):
        parts = [_letter(byte) for byte in word.encode()]
        if values["pre"] == "llama-bpe" and "".join(parts) in known:
            parts = ["".join(parts)]
        while len(parts) > 1:
            pairs = [(ranks.get(pair, math.inf), i) for i, pair in enumerate(pairwise(parts))]
            rank, place = min(pairs)
            if rank == math.inf:
                break
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        found += [known[part] for part in parts if part in known]
    return found


def _letter(byte: int) -> str:
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    if byte in plain:
        return chr(byte)
    return chr(256 + [one for one in range(256) if one not in plain].index(byte))


def merge_pieces(values: dict[str, Any], text: str) -> list[int]:
    """The neighbours that form the piece of the highest score, each time."""
    known = {token: number for number, token in enumerate(values["tokens"])}
    parts = list((" " * values["add_space_prefix"] + text).replace(" ", "▁"))
    while True:
        scored = [
            (-values["scores"][known[first + second]], place)
            for place, (first, second) in enumerate(pairwise(parts))
            if first + second in known
        ]
        if not scored:
            break
        _, place = min(scored)
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    found: list[int] = []
    for part in parts:
        bytes_of = [known[f"<0x{byte:02X}>"] for byte in part.encode()]
        found += [known[part]] if part in known else bytes_of
    return found
