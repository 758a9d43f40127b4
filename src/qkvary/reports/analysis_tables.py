"""The tables of an analysis: each figure, and that of random weights."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from statistics import fmean

from qkvary.analysis.findings import is_uncertain
from qkvary.analysis.results import (
    CosineReading,
    EffectiveRank,
    LayerAnalysis,
    MatrixName,
    RankReading,
)
from qkvary.reports.tables import Cell, Field, Raw, Table, dataset, number, plain, tabulate, word
from qkvary.text.numbers import MISSING, fixed, percent, real, whole

_LETTERS = {"query": "W_Q", "key": "W_K", "value": "W_V", "query-key": "W_Q W_K^T"}
_MATRICES: tuple[MatrixName, ...] = ("query", "key", "value", "query-key")
_LAYER = word("layer=number")


def key_value_table(layers: Sequence[LayerAnalysis]) -> Table:
    """Return what key and value have in common in each layer: means over KV heads."""

    def pair(name: str, chance: str = "") -> Callable[[LayerAnalysis], Cell]:
        def write(layer: LayerAnalysis) -> Cell:
            found = _mean(layer.key_values, name)
            expected = percent(_mean(layer.key_values, chance))
            return Cell(raw=found, text=percent(found), below=(f"random {expected}",))

        return write

    note = (
        "Means over KV heads; forecasts are sums, score changes the largest. * not "
        "trusted: changes are beyond second order. No figure here changes with the "
        "basis of a head."
    )
    return tabulate(
        "keys-and-values",
        "Keys and values, layer by layer",
        layers,
        _LAYER,
        word("variant=label"),
        number("explained=", write=pair("explained", "explained_chance"), below="V by K"),
        number(
            "weight_overlap=",
            "row spaces",
            pair("weight_overlap", "weight_chance"),
            below="mean cos²",
        ),
        number(
            "token_overlap=", "tokens", pair("token_overlap", "token_chance"), below="mean cos²"
        ),
        number("similarity=", "CKA", pair("similarity", "similarity_chance"), below="as read"),
        number("lost=", write=pair("lost", "lost_chance"), below="by one tensor"),
        number("forecast_nats_per_token=", "forecast", _forecast, below="nats per token"),
        number("score_change", "score change", partial(fixed, decimals=2), below="rms"),
        notes=[note],
        main=True,
    )


def _forecast(layer: LayerAnalysis) -> Cell:
    mark = "*" if is_uncertain(layer) else ""
    text = "one tensor" if layer.is_shared else _nats(layer.forecast) + mark
    return plain(layer.forecast, text)


def _mean(heads: Sequence[object], name: str) -> float:
    return fmean(getattr(head, name) for head in heads)


def cosine_table(layers: Sequence[LayerAnalysis]) -> Table:
    """Return the cosines of the weights of each layer, by three definitions."""
    rows = [
        {
            "number": layer.number,
            **{
                f"{pair.first}_{pair.second}_{kind}": cell
                for pair in layer.cosines
                for kind, cell in _compare_weights(pair).items()
            },
        }
        for layer in layers
    ]
    note = (
        "Flattened: the matrices as vectors. Columns: the mean of the cosines of equal "
        "channels. Heads: the mean size of the cosines of equal heads. Random: a mean of 0 "
        "with the standard deviation below each figure, derived as 1/sqrt(entries). A "
        "weight with fewer heads is compared with every head of its group."
    )
    return tabulate(
        "cosines",
        "Cosines of weights",
        rows,
        _LAYER,
        *(
            number(
                f"{pair.first}_{pair.second}_{kind}",
                f"{_LETTERS[pair.first]}, {_LETTERS[pair.second]}",
                below=kind.replace("_", " "),
            )
            for pair in layers[0].cosines
            for kind in _compare_weights(pair)
        ),
        notes=[note],
    )


def _compare_weights(pair: CosineReading) -> dict[str, Cell]:
    by_head = [abs(value) for value in pair.heads if value is not None]
    return {
        "flattened": _cosine(pair.flattened, pair.deviation),
        "columns": _cosine(pair.columns, pair.deviation),
        "heads_mean_size": _cosine(fmean(by_head) if by_head else None, pair.head_deviation),
    }


def rank_table(layers: Sequence[LayerAnalysis]) -> Table:
    """Return the effective ranks of each layer; for products of heads, their mean."""
    rows: list[dict[str, Raw | Cell]] = []
    for layer in layers:
        for name in _MATRICES:
            chosen = [
                rank
                for rank in layer.ranks
                if rank.matrix == name and (rank.head is None) == (name != "query-key")
            ]
            first = chosen[0]
            suffix = "" if first.head is None else ", mean of heads"
            rows.append(
                {
                    "number": layer.number,
                    "matrix": plain(_LETTERS[name], _LETTERS[name] + suffix),
                    "shape": plain(
                        f"{first.rows} x {first.columns}", f"{first.rows} × {first.columns}"
                    ),
                    **{kind: _rank(chosen, kind) for kind in EffectiveRank.__dataclass_fields__},
                }
            )
    return tabulate(
        "ranks",
        "Effective ranks of weights",
        rows,
        _LAYER,
        word("matrix"),
        word("shape"),
        number("entropy", below="of σ"),
        number("entropy_of_squares", "entropy", below="of σ²"),
        number("participation"),
        number("energy_90", "90 %", below="of energy"),
        number("energy_95", "95 %", below="of energy"),
        number("energy_99", "99 %", below="of energy"),
        notes=["Random: matrices of that shape with independent normal entries, sampled."],
    )


def attention_table(layers: Sequence[LayerAnalysis]) -> Table:
    """Return what each layer's heads attend to, and how asymmetrically: means over heads."""

    def uniform(name: str, decimals: int) -> Callable[[LayerAnalysis], Cell]:
        def write(layer: LayerAnalysis) -> Cell:
            found, expected = (_mean(layer.attention, one) for one in (name, f"uniform_{name}"))
            below = (f"uniform {fixed(expected, decimals)}",)
            return Cell(raw=found, text=fixed(found, decimals), below=below)

        return write

    def asymmetry(name: str, below: str) -> Field:
        def write(layer: LayerAnalysis) -> Cell:
            found = _mean(layer.attention, name)
            return plain(found, fixed(found, 2))

        return number(f"{name}=", "asymmetry", write, below=below)

    note = (
        "Means over heads. Uniform: equal weights on all visible keys. Asymmetry: "
        "|A - A^T| / |A + A^T|, 0 where a matrix is symmetric and near 1 where its entries "
        "above and below the diagonal have nothing in common. By the mask: that of the "
        "attention if the scores were (S + S^T) / 2."
    )
    return tabulate(
        "attention",
        "Attention, layer by layer",
        layers,
        _LAYER,
        number("entropy_nats=", "entropy", uniform("entropy", 2), below="nats"),
        number("distance_tokens=", "distance", uniform("distance", 1), below="tokens"),
        number("diagonal=", "own token", uniform("diagonal", 3), below="weight"),
        asymmetry("score_asymmetry", "scores"),
        asymmetry("unmasked_asymmetry", "softmax, no mask"),
        asymmetry("asymmetry", "attention"),
        asymmetry("mask_asymmetry", "by the mask"),
        notes=[note],
    )


def datasets(layers: Sequence[LayerAnalysis]) -> tuple[Table, ...]:
    """Return all figures, unrounded, by head."""
    heads = [(layer, head) for layer in layers for head in layer.key_values]
    lists = ("weight_cosines", "token_cosines", "spectrum")
    return (
        dataset(
            "key-value-heads",
            (
                {"layer": layer.number, "variant": layer.label, **_scalars(asdict(head), lists)}
                for layer, head in heads
            ),
        ),
        dataset(
            "key-value-spectra",
            (
                {
                    "layer": layer.number,
                    "head": head.head,
                    "quantity": name,
                    "index": index,
                    "value": value,
                }
                for layer, head in heads
                for name in lists
                for index, value in enumerate(getattr(head, name), start=1)
            ),
        ),
        dataset("cosines", _list_cosines(layers)),
        dataset(
            "ranks",
            ({"layer": layer.number, **_flatten(rank)} for layer in layers for rank in layer.ranks),
        ),
        dataset(
            "attention-heads",
            (
                {"layer": layer.number, **asdict(head)}
                for layer in layers
                for head in layer.attention
            ),
        ),
    )


def _list_cosines(layers: Sequence[LayerAnalysis]) -> Iterable[dict[str, Raw]]:
    for layer in layers:
        for pair in layer.cosines:
            for definition, value, deviation in _definitions(pair):
                yield {
                    "layer": layer.number,
                    "first": pair.first,
                    "second": pair.second,
                    "definition": definition,
                    "cosine": value,
                    "random_deviation": deviation,
                }


def _definitions(pair: CosineReading) -> Iterable[tuple[str, float | None, float]]:
    yield "flattened", pair.flattened, pair.deviation
    yield "columns", pair.columns, pair.deviation
    for head, value in enumerate(pair.heads, start=1):
        yield f"head {head}", value, pair.head_deviation


def _scalars(fields: dict[str, Raw], lists: Sequence[str]) -> dict[str, Raw]:
    return {name: value for name, value in fields.items() if name not in lists}


def _flatten(rank: RankReading) -> dict[str, Raw]:
    return {
        "matrix": rank.matrix,
        "head": rank.head,
        "rows": rank.rows,
        "columns": rank.columns,
        **asdict(rank.found),
        **{f"random_{name}": value for name, value in asdict(rank.chance).items()},
    }


def _cosine(value: float | None, deviation: float) -> Cell:
    text = MISSING if value is None else fixed(value, 3, sign=True)
    return Cell(raw=value, text=text, below=(f"± {real(deviation, 2)}",))


def _rank(ranks: Sequence[RankReading], kind: str) -> Cell:
    found, chance = (
        values[0] if len(values) == 1 else fmean(values)
        for values in (
            [getattr(rank.found, kind) for rank in ranks],
            [getattr(rank.chance, kind) for rank in ranks],
        )
    )
    return Cell(raw=found, text=_size(found), below=(f"random {_size(chance)}",))


def _size(value: float) -> str:
    return whole(round(value)) if isinstance(value, int) or value >= 100 else fixed(value, 1)


def _nats(value: float) -> str:
    return "< 0.0001" if 0 <= value < 1e-4 else real(value, 2)
