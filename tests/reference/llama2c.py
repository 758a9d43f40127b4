"""The llama2.c format by another hand: a writer, and its network and tokenizer as llama.cpp's."""

import functools
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.reference import llama_cpp

Array = NDArray[np.float64]

SIZES = {
    "dim": 24,
    "hidden_dim": 11,
    "n_layers": 2,
    "n_heads": 6,
    "n_kv_heads": 3,
    "vocab_size": 307,
    "seq_len": 33,
}


def make_weights(sizes: dict[str, int], seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Random weights in the order of the file; their logits decide a greedy text."""
    draws = np.random.default_rng(seed)
    dim, hidden, layers = sizes["dim"], sizes["hidden_dim"], sizes["n_layers"]
    head = dim // sizes["n_heads"]
    narrow = head * sizes["n_kv_heads"]
    angles = np.outer(
        np.arange(sizes["seq_len"]), [10000.0 ** (-i / head) for i in range(0, head, 2)]
    )

    def matrix(*shape: int) -> Array:
        return draws.normal(size=shape) * 1.3 / np.sqrt(shape[-1])

    made = {
        "embedding": draws.normal(size=(sizes["vocab_size"], dim)) * 0.7,
        "attention_norm": 1 + 0.2 * draws.normal(size=(layers, dim)),
        "wq": matrix(layers, dim, dim),
        "wk": matrix(layers, narrow, dim),
        "wv": matrix(layers, narrow, dim),
        "wo": matrix(layers, dim, dim),
        "ffn_norm": 1 + 0.2 * draws.normal(size=(layers, dim)),
        "w1": matrix(layers, hidden, dim),
        "w2": matrix(layers, dim, hidden),
        "w3": matrix(layers, hidden, dim),
        "final_norm": 1 + 0.2 * draws.normal(size=dim),
        "cos": np.cos(angles),
        "sin": np.sin(angles),
        "head": draws.normal(size=(sizes["vocab_size"], dim)) * 0.7,
    }
    return {name: values.astype(np.float32) for name, values in made.items()}


def pack(
    sizes: dict[str, int], weights: dict[str, NDArray[np.float32]], *, tied: bool = True
) -> bytes:
    """The bytes of a model file; a negative vocabulary says that the head is not the embedding."""
    header = sizes | {"vocab_size": sizes["vocab_size"] * (1 if tied else -1)}
    parts = [values.tobytes() for kind, values in weights.items() if kind != "head" or not tied]
    return struct.pack("<7i", *header.values()) + b"".join(parts)


def logits(
    sizes: dict[str, int],
    weights: dict[str, NDArray[np.float32]],
    tokens: list[int],
    *,
    tied: bool = True,
) -> Array:
    """The logits after every token: the graph of Llama in llama.cpp, which rotates alike."""
    names = {
        "attn_norm": "attention_norm",
        "attn_q": "wq",
        "attn_k": "wk",
        "attn_v": "wv",
        "attn_output": "wo",
        "ffn_norm": "ffn_norm",
        "ffn_gate": "w1",
        "ffn_down": "w2",
        "ffn_up": "w3",
    }
    tensors = {
        f"blk.{layer}.{name}.weight": weights[own][layer].astype(np.float64)
        for name, own in names.items()
        for layer in range(sizes["n_layers"])
    }
    outside = {"token_embd": "embedding", "output_norm": "final_norm"}
    outside |= {} if tied else {"output": "head"}
    tensors |= {f"{name}.weight": weights[own].astype(np.float64) for name, own in outside.items()}
    values = {
        "attention.head_count": sizes["n_heads"],
        "attention.head_count_kv": sizes["n_kv_heads"],
        "attention.layer_norm_rms_epsilon": 1e-5,
        "block_count": sizes["n_layers"],
        "rope.dimension_count": sizes["dim"] // sizes["n_heads"],
        "rope.freq_base": 10_000.0,
    }
    known = {f"llama.{name}": value for name, value in values.items()}
    return llama_cpp.logits(llama_cpp.File("llama", known, tensors), tokens)


def make_pieces(vocabulary: int) -> tuple[list[bytes], list[float]]:
    """Control tokens, bytes, merges of two and three characters, and single characters."""
    merges = b"he, t, a,in, the,an,er, s,ing, an,re,at".split(b",")
    letters = [letter.encode() for letter in " etaoinhsrdlumywcgfbpvkTI.,!é€"]
    pieces = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(f"<0x{i:02X}>".encode() for i in range(256))]
    pieces += merges + letters
    assert len(pieces) <= vocabulary
    pieces += [f"unused{i}".encode() for i in range(vocabulary - len(pieces))]
    return pieces, [0.0] * 259 + [-float(i) for i in range(vocabulary - 259)]


def pack_tokenizer(pieces: list[bytes], scores: list[float]) -> bytes:
    """The bytes of a tokenizer file."""
    rows = zip(pieces, scores, strict=True)
    body = b"".join(struct.pack("<fi", score, len(piece)) + piece for piece, score in rows)
    return struct.pack("<i", max(map(len, pieces))) + body


def encode(pieces: list[bytes], scores: list[float], text: str) -> list[int]:
    """Join the neighbours of the highest score, as llama.cpp does; only later tokens are text."""
    names = [piece.decode().replace(" ", "▁") for piece in pieces]
    names[:3] = ["<unk>", "<s>", "</s>"]
    values = {"tokens": names, "scores": scores, "add_space_prefix": True}
    return [1, *(llama_cpp.merge_pieces(values, text) if text else [])]


TEXTS = ("the rain in the arena", "an answer, at last!", "I hear  the sea: 5 €\n")


def write_stand_in(folder: Path) -> None:
    """A small model with random weights, its tokenizer, and what this file says that it does."""
    folder.mkdir(parents=True)
    for name, data in make_stand_in().items():
        (folder / name).write_bytes(data)


@functools.cache
def make_stand_in() -> dict[str, bytes]:
    """The files of the stand-in; plain loops take a while."""
    weights = make_weights(SIZES)
    pieces, scores = make_pieces(SIZES["vocab_size"])
    ids = [1]
    while len(ids) < 31:
        ids.append(int(logits(SIZES, weights, ids)[-1].argmax()))
    losses: list[float] = []
    for text in TEXTS:
        tokens = encode(pieces, scores, text)
        losses += llama_cpp.nats(logits(SIZES, weights, tokens)[:-1], tokens[1:])
    reference: dict[str, Any] = {
        "validation": {
            "predicted_tokens": len(losses),
            "mean_nll_nats": round(float(np.mean(losses)), 6),
        },
        "greedy": {"prompt_ids": [1], "new_tokens": len(ids) - 1, "ids": ids},
        "logits_after_bos": [round(float(x), 5) for x in logits(SIZES, weights, [1])[-1]],
    }
    data = [bytes((t - 3,)) if 3 <= t < 259 else pieces[t] if t > 2 else b"" for t in ids[1:]]
    data[0] = data[0].removeprefix(b" ")
    reference["greedy"]["text"] = b"".join(data).decode("utf-8", "replace")
    return {
        "model.bin": pack(SIZES, weights),
        f"tok{SIZES['vocab_size']}.bin": pack_tokenizer(pieces, scores),
        "reference.json": json.dumps(reference).encode(),
    }
