"""The tables of an analysis: each figure beside that of random weights."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from statistics import fmean

from qkvary.analysis.findings import is_uncertain
from qkvary.analysis.results import (
    AttentionReading,
    CosineReading,
    EffectiveRank,
    LayerAnalysis,
    MatrixName,
    RankReading,
)
from qkvary.reports.tables import Cell, Column, Raw, Table, dataset, plain
from qkvary.text.numbers import MISSING, fixed, percent, real, whole

_LETTERS = {"query": "W_Q", "key": "W_K", "value": "W_V", "query-key": "W_Q W_K^T"}
_ASYMMETRIES = ("score_asymmetry", "unmasked_asymmetry", "asymmetry", "mask_asymmetry")
_MATRICES: tuple[MatrixName, ...] = ("query", "key", "value", "query-key")


def key_value_table(layers: Sequence[LayerAnalysis]) -> Table:
    """Return what key and value have in common in each layer: means over KV heads."""
    rows: list[tuple[Cell, ...]] = []
    for layer in layers:
        heads = layer.key_values

        def pair(name: str, chance: str, heads: Sequence[object] = heads) -> Cell:
            found = fmean(getattr(head, name) for head in heads)
            expected = fmean(getattr(head, chance) for head in heads)
            return Cell(raw=found, text=percent(found), below=(f"random {percent(expected)}",))

        uncertain = is_uncertain(layer) and not layer.is_shared
        rows.append(
            (
                plain(layer.number),
                plain(layer.label),
                pair("explained", "explained_chance"),
                pair("weight_overlap", "weight_chance"),
                pair("token_overlap", "token_chance"),
                pair("similarity", "similarity_chance"),
                pair("lost", "lost_chance"),
                plain(
                    layer.forecast,
                    "one tensor" if layer.is_shared else _nats(layer.forecast) + "*" * uncertain,
                ),
                plain(layer.score_change, fixed(layer.score_change, 2)),
            )
        )
    return Table(
        key="keys-and-values",
        title="Keys and values, layer by layer",
        main=True,
        columns=(
            Column(key="layer", title="layer", numeric=False),
            Column(key="variant", title="variant", numeric=False),
            Column(key="explained", title="explained", below="V by K"),
            Column(key="weight_overlap", title="row spaces", below="mean cos²"),
            Column(key="token_overlap", title="tokens", below="mean cos²"),
            Column(key="similarity", title="CKA", below="as read"),
            Column(key="lost", title="lost", below="by one tensor"),
            Column(key="forecast_nats_per_token", title="forecast", below="nats per token"),
            Column(key="score_change", title="score change", below="rms"),
        ),
        rows=tuple(rows),
        notes=(
            (
                "Means over KV heads; forecasts are sums, score changes the largest. * not "
                "trusted: changes are beyond second order. No figure here changes with the "
                "basis of a head."
            ),
        ),
    )


def cosine_table(layers: Sequence[LayerAnalysis]) -> Table:
    """Return the cosines of the weights of each layer, by three definitions."""
    rows: list[tuple[Cell, ...]] = []
    for layer in layers:
        cells: list[Cell] = [plain(layer.number)]
        for pair in layer.cosines:
            by_head = [value for value in pair.heads if value is not None]
            cells += [
                _cosine(pair.flattened, pair.deviation),
                _cosine(pair.columns, pair.deviation),
                _cosine(fmean(map(abs, by_head)) if by_head else None, pair.head_deviation),
            ]
        rows.append(tuple(cells))
    pairs = layers[0].cosines
    return Table(
        key="cosines",
        title="Cosines of weights",
        columns=(
            Column(key="layer", title="layer", numeric=False),
            *(
                Column(
                    key=f"{pair.first}_{pair.second}_{kind}",
                    title=f"{_LETTERS[pair.first]}, {_LETTERS[pair.second]}",
                    below=kind.replace("_", " "),
                )
                for pair in pairs
                for kind in ("flattened", "columns", "heads_mean_size")
            ),
        ),
        rows=tuple(rows),
        notes=(
            (
                "Flattened: the matrices as vectors. Columns: the mean of the cosines of equal "
                "channels. Heads: the mean size of the cosines of equal heads. Random: a mean of 0 "
                "with the standard deviation below each figure, derived as 1/sqrt(entries). A "
                "weight with fewer heads is compared with every head of its group."
            ),
        ),
    )


def rank_table(layers: Sequence[LayerAnalysis]) -> Table:
    """Return the effective ranks of each layer; of products of heads the mean."""
    rows: list[tuple[Cell, ...]] = []
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
                (
                    plain(layer.number),
                    plain(_LETTERS[name], _LETTERS[name] + suffix),
                    plain(f"{first.rows} x {first.columns}", f"{first.rows} × {first.columns}"),
                    *(_rank(chosen, kind) for kind in EffectiveRank.__dataclass_fields__),
                )
            )
    return Table(
        key="ranks",
        title="Effective ranks of weights",
        columns=(
            Column(key="layer", title="layer", numeric=False),
            Column(key="matrix", title="matrix", numeric=False),
            Column(key="shape", title="shape", numeric=False),
            Column(key="entropy", title="entropy", below="of σ"),
            Column(key="entropy_of_squares", title="entropy", below="of σ²"),
            Column(key="participation", title="participation"),
            Column(key="energy_90", title="90 %", below="of energy"),
            Column(key="energy_95", title="95 %", below="of energy"),
            Column(key="energy_99", title="99 %", below="of energy"),
        ),
        rows=tuple(rows),
        notes=("Random: matrices of that shape with independent normal entries, sampled.",),
    )


def attention_table(layers: Sequence[LayerAnalysis]) -> Table:
    """Return what the heads of each layer attend to, and how asymmetrically: means over heads."""
    rows: list[tuple[Cell, ...]] = []
    for layer in layers:
        heads = layer.attention

        def mean(name: str, heads: Sequence[AttentionReading] = heads) -> float:
            return fmean(getattr(head, name) for head in heads)

        rows.append(
            (
                plain(layer.number),
                _beside(mean("entropy"), mean("uniform_entropy"), 2),
                _beside(mean("distance"), mean("uniform_distance"), 1),
                _beside(mean("diagonal"), mean("uniform_diagonal"), 3),
                *(plain(mean(name), fixed(mean(name), 2)) for name in _ASYMMETRIES),
            )
        )
    return Table(
        key="attention",
        title="Attention, layer by layer",
        columns=(
            Column(key="layer", title="layer", numeric=False),
            Column(key="entropy_nats", title="entropy", below="nats"),
            Column(key="distance_tokens", title="distance", below="tokens"),
            Column(key="diagonal", title="own token", below="weight"),
            Column(key="score_asymmetry", title="asymmetry", below="scores"),
            Column(key="unmasked_asymmetry", title="asymmetry", below="softmax, no mask"),
            Column(key="asymmetry", title="asymmetry", below="attention"),
            Column(key="mask_asymmetry", title="asymmetry", below="by the mask"),
        ),
        rows=tuple(rows),
        notes=(
            (
                "Means over heads. Uniform: equal weights on all visible keys. Asymmetry: "
                "|A - A^T| / |A + A^T|, 0 where a matrix is symmetric and near 1 where its entries "
                "above and below the diagonal have nothing in common. By the mask: that of the "
                "attention if the scores were (S + S^T) / 2."
            ),
        ),
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


def _beside(value: float, uniform: float, decimals: int) -> Cell:
    return Cell(
        raw=value, text=fixed(value, decimals), below=(f"uniform {fixed(uniform, decimals)}",)
    )


def _size(value: float) -> str:
    return whole(round(value)) if isinstance(value, int) or value >= 100 else fixed(value, 1)


def _nats(value: float) -> str:
    return "< 0.0001" if 0 <= value < 1e-4 else real(value, 2)
