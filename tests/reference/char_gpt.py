"""The character model's format by another hand: weights and the forward pass in float64."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save as pack

from tests.reference.llama_cpp import apply, attend, layer_norm, nats

Array = NDArray[np.float64]

CONFIG: dict[str, Any] = {
    "vocab_size": 13,
    "d_model": 20,
    "num_layers": 2,
    "num_heads": 5,
    "num_kv_heads": 5,
    "head_dim": 4,
    "d_ff": 23,
    "ffn_activation": "relu",
    "max_len": 31,
    "attention_scale": "1/sqrt(head_dim)",
    "linear_bias": True,
    "layer_norm_eps": 1e-05,
    "chars": "\n adehinorst.",
}
TEXT = "the rain is near.\nho ho" * 5


def make_weights(config: dict[str, Any], seed: int = 1) -> dict[str, NDArray[np.float32]]:
    """Random weights by their names in the file."""
    draws = np.random.default_rng(seed)
    d, narrow = config["d_model"], config["num_kv_heads"] * config["head_dim"]
    wide = config["num_heads"] * config["head_dim"]
    shapes = {"token_embedding.weight": (config["vocab_size"], d)}
    shapes["pos_embedding.weight"] = (config["max_len"], d)
    for layer in range(config["num_layers"]):
        own = {
            "self_attn.W_q": (wide, d),
            "self_attn.W_k": (narrow, d),
            "self_attn.W_v": (narrow, d),
            "self_attn.W_o": (d, wide),
            "ffn.linear1": (config["d_ff"], d),
            "ffn.linear2": (d, config["d_ff"]),
        }
        for name, shape in own.items():
            shapes[f"blocks.{layer}.{name}.weight"] = shape
            shapes[f"blocks.{layer}.{name}.bias"] = shape[:1]
        for norm in ("norm1", "norm2"):
            shapes[f"blocks.{layer}.{norm}.weight"] = shapes[f"blocks.{layer}.{norm}.bias"] = (d,)
    shapes |= {"ln_f.weight": (d,), "ln_f.bias": (d,)}
    shapes |= {"lm_head.weight": (config["vocab_size"], d), "lm_head.bias": (config["vocab_size"],)}
    made: dict[str, NDArray[np.float32]] = {}
    for name, shape in shapes.items():
        values = draws.normal(size=shape) * (1.0 / np.sqrt(shape[-1]) if len(shape) > 1 else 0.2)
        center = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        made[name] = (values + center).astype(np.float32)
    return made


def logits(
    config: dict[str, Any], weights: dict[str, NDArray[np.float32]], tokens: list[int]
) -> Array:
    """The logits after every token."""
    w = {name: values.astype(np.float64) for name, values in weights.items()}
    x = w["token_embedding.weight"][tokens] + w["pos_embedding.weight"][: len(tokens)]
    linear, norm = partial(apply, w), partial(layer_norm, w, 1e-5)
    for layer in range(config["num_layers"]):
        at = f"blocks.{layer}"
        q, k, v = (linear(x, f"{at}.self_attn.W_{role}") for role in "qkv")
        mixed = attend(q, k, v, config["num_heads"], config["num_kv_heads"])
        x = norm(x + linear(mixed, f"{at}.self_attn.W_o"), f"{at}.norm1")
        inner = np.maximum(linear(x, f"{at}.ffn.linear1"), 0)
        x = norm(x + linear(inner, f"{at}.ffn.linear2"), f"{at}.norm2")
    return linear(norm(x, "ln_f"), "lm_head")


def write_stand_in(folder: Path) -> None:
    """A small model with random weights, and what this file says that it does."""
    weights = make_weights(CONFIG)
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(pack(weights))
    (folder / "config.json").write_text(json.dumps(CONFIG), "utf-8")
    prompt, size = "the ", CONFIG["max_len"]
    ids = [CONFIG["chars"].index(letter) for letter in prompt]
    first = logits(CONFIG, weights, ids)[-1]
    while len(ids) < size:
        ids.append(int(logits(CONFIG, weights, ids)[-1].argmax()))
    codes = [CONFIG["chars"].index(letter) for letter in TEXT]
    losses: list[float] = []
    for start in range(0, len(codes) - size, size):
        rows = logits(CONFIG, weights, codes[start : start + size])
        losses += nats(rows, codes[start + 1 : start + size + 1])
    reference = {
        "validation": {
            "windows": len(losses) // size,
            "mean_nll_nats": round(float(np.mean(losses)), 6),
        },
        "greedy": {
            "prompt": prompt,
            "new_tokens": len(ids) - len(prompt),
            "text": "".join(CONFIG["chars"][token] for token in ids),
        },
        "logits_after_prompt": [round(float(x), 5) for x in first],
    }
    (folder / "reference.json").write_text(json.dumps(reference), "utf-8")
