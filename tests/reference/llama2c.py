"""The llama2.c format by another hand: a writer, the forward pass in float64, a naive tokenizer."""

import functools
import itertools
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
KINDS = (
    "embedding",
    "attention_norm",
    "wq",
    "wk",
    "wv",
    "wo",
    "ffn_norm",
    "w1",
    "w2",
    "w3",
    "final_norm",
    "cos",
    "sin",
)


def make_weights(sizes: dict[str, int], seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Random weights with logits far enough apart that a greedy text is decided."""
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
    header = [
        *list(sizes.values())[:5],
        sizes["vocab_size"] * (1 if tied else -1),
        sizes["seq_len"],
    ]
    kinds = KINDS if tied else (*KINDS, "head")
    return struct.pack("<7i", *header) + b"".join(weights[kind].tobytes() for kind in kinds)


def logits(
    sizes: dict[str, int],
    weights: dict[str, NDArray[np.float32]],
    tokens: list[int],
    *,
    tied: bool = True,
) -> Array:
    """The logits after every token, token by token."""
    w = {name: values.astype(np.float64) for name, values in weights.items()}
    heads, size = sizes["n_heads"], sizes["dim"] // sizes["n_heads"]
    group = heads // sizes["n_kv_heads"]
    keys: list[list[list[Array]]] = [[] for _ in range(sizes["n_layers"])]
    values: list[list[list[Array]]] = [[] for _ in range(sizes["n_layers"])]
    found: list[Array] = []
    for position, token in enumerate(tokens):
        x = w["embedding"][token]
        for layer in range(sizes["n_layers"]):
            read = _rms(x, w["attention_norm"][layer])
            q = [_turn(part, position) for part in np.split(w["wq"][layer] @ read, heads)]
            k = np.split(w["wk"][layer] @ read, sizes["n_kv_heads"])
            keys[layer].append([_turn(part, position) for part in k])
            values[layer].append(np.split(w["wv"][layer] @ read, sizes["n_kv_heads"]))
            mixed: list[Array] = []
            for head in range(heads):
                scores = np.array([q[head] @ key[head // group] for key in keys[layer]])
                odds = np.exp((scores - scores.max()) / np.sqrt(size))
                odds /= odds.sum()
                parts = [o * v[head // group] for o, v in zip(odds, values[layer], strict=True)]
                mixed.append(np.sum(parts, axis=0))
            x = x + w["wo"][layer] @ np.concatenate(mixed)
            read = _rms(x, w["ffn_norm"][layer])
            gate = w["w1"][layer] @ read
            x = x + w["w2"][layer] @ (gate / (1 + np.exp(-gate)) * (w["w3"][layer] @ read))
        found.append(w["embedding" if tied else "head"] @ _rms(x, w["final_norm"]))
    return np.stack(found)


def _rms(x: Array, gain: Array) -> Array:
    return x / np.sqrt((x * x).mean() + 1e-5) * gain


def _turn(head: Array, position: int) -> Array:
    """Neighbouring channels are one point of a plane each."""
    turned = head.copy()
    for i in range(0, len(head), 2):
        angle = position * 10000.0 ** (-i / len(head))
        turned[i] = head[i] * np.cos(angle) - head[i + 1] * np.sin(angle)
        turned[i + 1] = head[i] * np.sin(angle) + head[i + 1] * np.cos(angle)
    return turned


def make_pieces(vocabulary: int) -> tuple[list[bytes], list[float]]:
    """Control tokens, bytes, merges of two and three characters, and single characters."""
    merges = [
        b"he",
        b" t",
        b" a",
        b"in",
        b" the",
        b"an",
        b"er",
        b" s",
        b"ing",
        b" an",
        b"re",
        b"at",
    ]
    letters = [bytes((code,)) for code in b" etaoinhsrdlumywcgfbpvkTI.,!"] + [
        "é".encode(),
        "€".encode(),
    ]
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
    """Join the neighbours of the highest score, looking at all of them every time."""
    known = {piece: token for token, piece in enumerate(pieces) if token >= 259}
    tokens: list[int] = []
    for letter in " " + text if text else "":
        data = letter.encode()
        tokens += [known[data]] if data in known else [3 + byte for byte in data]
    while True:
        best: tuple[float, int, int] | None = None
        for place, (first, second) in enumerate(itertools.pairwise(tokens)):
            token = known.get(pieces[first] + pieces[second])
            if token is not None and (best is None or scores[token] > best[0]):
                best = (scores[token], place, token)
        if best is None:
            return [1, *tokens]
        tokens[best[1] : best[1] + 2] = [best[2]]


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
        rows = logits(SIZES, weights, tokens)[:-1]
        for row, target in zip(rows, tokens[1:], strict=True):
            losses.append(float(np.log(np.exp(row - row.max()).sum()) + row.max() - row[target]))
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
