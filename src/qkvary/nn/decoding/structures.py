"""The structures that a step passes to the native library, field by field as in ``step.cpp``."""

import ctypes

from qkvary.arch.sharing import IDENTITY, KEY_ROPE, QUERY_ROPE, Source
from qkvary.nn.decoding.native import Call, Stored, int64, pointer

SOURCES: tuple[Source, ...] = ("q", "k", "v", QUERY_ROPE, KEY_ROPE, IDENTITY)


class Matrix(ctypes.Structure):
    """A matrix of weights, or of codes with scales."""

    _fields_ = (
        ("weight", pointer),
        ("bias", pointer),
        ("scales", pointer),
        ("width", int64),
        ("inner", int64),
    )


class Norm(ctypes.Structure):
    """A norm of rows."""

    _fields_ = (
        ("weight", pointer),
        ("bias", pointer),
        ("kind", int64),
        ("epsilon", ctypes.c_double),
    )


class Projected(ctypes.Structure):
    """A source: the input through one matrix, or through two."""

    _fields_ = (("down", Matrix), ("weight", Matrix))


class Sums(ctypes.Structure):
    """The state of linear attention, before a token and after it."""

    _fields_ = (
        ("values", pointer),
        ("keys", pointer),
        ("values_after", pointer),
        ("keys_after", pointer),
        ("decay", pointer),
        ("decay_is_learned", int64),
        ("decays_keys", int64),
        ("features", int64),
        ("scale", ctypes.c_double),
    )


class Layer(ctypes.Structure):
    """One layer of attention, and the feed-forward network after it."""

    _fields_ = (
        ("attention_norm", Norm),
        ("feed_forward_norm", Norm),
        ("sources", Projected * len(SOURCES)),
        ("query", int64),
        ("key", int64),
        ("value", int64),
        ("residual", int64),
        ("out", Matrix),
        ("up", Matrix),
        ("gate", Matrix),
        ("down", Matrix),
        ("latent_key", Matrix),
        ("latent_value", Matrix),
        ("activation", int64),
        ("post", int64),
        ("queries", int64),
        ("pairs", int64),
        ("cos", pointer),
        ("sin", pointer),
        ("turns_key", int64),
        ("turns_value", int64),
        ("turns_back", int64),
        ("turns_by_index", int64),
        ("reads_memory", int64),
        ("key_norm", Norm),
        ("query_norm", Norm),
        ("norms_heads", int64),
        ("norms_value", int64),
        ("rope", Stored),
        ("closing", int64),
        ("sums", Sums),
        ("attention", Call),
    )


class Step(ctypes.Structure):
    """A network and one new token of every row."""

    _fields_ = (
        ("layers", ctypes.POINTER(Layer)),
        ("num_layers", int64),
        ("rows", int64),
        ("width", int64),
        ("storage", int64),
        ("threads", int64),
        ("bytes", int64),
        ("embedding", Matrix),
        ("embedding_scale", ctypes.c_double),
        ("positions", pointer),
        ("tokens", pointer),
        ("position", pointer),
        ("index", int64),
        ("final_norm", Norm),
        ("head", Matrix),
        ("logits", pointer),
    )
