"""The structures that a step passes to the native library, field by field as in ``step.cpp``."""

import ctypes

from qkvary.arch.sharing import IDENTITY, KEY_ROPE, QUERY_ROPE, Source
from qkvary.nn.decoding.native import Call, Stored

SOURCES: tuple[Source, ...] = ("q", "k", "v", QUERY_ROPE, KEY_ROPE, IDENTITY)

_int64, _pointer = ctypes.c_int64, ctypes.c_void_p


class Matrix(ctypes.Structure):
    """A matrix of weights, or of codes with scales."""

    _fields_ = (
        ("weight", _pointer),
        ("bias", _pointer),
        ("scales", _pointer),
        ("width", _int64),
        ("inner", _int64),
    )


class Norm(ctypes.Structure):
    """A norm of rows."""

    _fields_ = (
        ("weight", _pointer),
        ("bias", _pointer),
        ("kind", _int64),
        ("epsilon", ctypes.c_double),
    )


class Projected(ctypes.Structure):
    """A source: the input through one matrix, or through two."""

    _fields_ = (("down", Matrix), ("weight", Matrix))


class Sums(ctypes.Structure):
    """The state of linear attention, before a token and after it."""

    _fields_ = (
        ("values", _pointer),
        ("keys", _pointer),
        ("values_after", _pointer),
        ("keys_after", _pointer),
        ("decay", _pointer),
        ("decay_is_learned", _int64),
        ("decays_keys", _int64),
        ("features", _int64),
        ("scale", ctypes.c_double),
    )


class Layer(ctypes.Structure):
    """One layer of attention, and the feed-forward network after it."""

    _fields_ = (
        ("attention_norm", Norm),
        ("feed_forward_norm", Norm),
        ("sources", Projected * len(SOURCES)),
        ("query", _int64),
        ("key", _int64),
        ("value", _int64),
        ("residual", _int64),
        ("out", Matrix),
        ("up", Matrix),
        ("gate", Matrix),
        ("down", Matrix),
        ("latent_key", Matrix),
        ("latent_value", Matrix),
        ("activation", _int64),
        ("post", _int64),
        ("queries", _int64),
        ("pairs", _int64),
        ("cos", _pointer),
        ("sin", _pointer),
        ("turns_key", _int64),
        ("turns_value", _int64),
        ("turns_back", _int64),
        ("turns_by_index", _int64),
        ("reads_memory", _int64),
        ("key_norm", Norm),
        ("query_norm", Norm),
        ("norms_heads", _int64),
        ("norms_value", _int64),
        ("rope", Stored),
        ("closing", _int64),
        ("sums", Sums),
        ("attention", Call),
    )


class Step(ctypes.Structure):
    """A network and one new token of every row."""

    _fields_ = (
        ("layers", ctypes.POINTER(Layer)),
        ("num_layers", _int64),
        ("rows", _int64),
        ("width", _int64),
        ("storage", _int64),
        ("threads", _int64),
        ("bytes", _int64),
        ("embedding", Matrix),
        ("embedding_scale", ctypes.c_double),
        ("positions", _pointer),
        ("tokens", _pointer),
        ("position", _pointer),
        ("index", _int64),
        ("final_norm", Norm),
        ("head", Matrix),
        ("logits", _pointer),
    )
