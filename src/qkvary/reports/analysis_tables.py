"""The tables of an analysis: each measured value, and the value for random weights."""

from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean

from qkvary.analysis.findings import is_uncertain
from qkvary.analysis.results import EffectiveRank, LayerAnalysis, RankReading
from qkvary.reports.tables import Cell, Raw, Table, number, plain, tabulate, word
from qkvary.text.numbers import MISSING, fixed, percent, real, whole

_LETTERS = {"query": "W_Q", "key": "W_K", "value": "W_V", "query-key": "W_Q W_K^T"}
_LAYER = word("layer=number")
_KINDS = tuple(EffectiveRank.__dataclass_fields__)


def _mean(
    part: str, write: Callable[[float], str], name: str, chance: str = "", source: str = "random"
) -> Callable[[LayerAnalysis], Cell]:
    """Return a function that makes a cell with the mean of ``name`` over a layer's heads.

    If ``chance`` is given, a second line in the cell has the mean of this field.
    """

    def cell(layer: LayerAnalysis) -> Cell:
        heads: Sequence[object] = getattr(layer, part)
        found = fmean(getattr(head, name) for head in heads)
        below = ""
        if chance:
            below = f"{source} {write(fmean(getattr(head, chance) for head in heads))}"
        return Cell(raw=found, text=write(found), below=(below,) if below else ())

    return cell


def key_value_table(layers: Sequence[LayerAnalysis]) -> Table:
    """Return a table of the similarity of key and value in each layer."""
    pair = partial(_mean, "key_values", percent)

    def forecast(layer: LayerAnalysis) -> Cell:
        nats = "< 0.0001" if 0 <= layer.forecast < 1e-4 else real(layer.forecast, 2)
        mark = "*" if is_uncertain(layer) else ""
        return plain(layer.forecast, "one tensor" if layer.is_shared else nats + mark)

    weights, tokens = (pair(f"{part}_overlap", f"{part}_chance") for part in ("weight", "token"))
    note = (
        "Forecasts are sums over KV heads, score changes are maxima over KV heads, and all other "
        "values are means over KV heads. A value marked * is not trusted, because the change is "
        "too large for the second-order forecast. No value in this table depends on the basis of a "
        "head."
    )
    return tabulate(
        "keys-and-values",
        "Keys and values, layer by layer",
        layers,
        _LAYER,
        word("variant=label"),
        number("explained=", write=pair("explained", "explained_chance"), below="V by K"),
        number("weight_overlap=", "row spaces", weights, below="mean cos²"),
        number("token_overlap=", "tokens", tokens, below="mean cos²"),
        number("similarity=", "CKA", pair("similarity", "similarity_chance"), below="weighted"),
        number("lost=", write=pair("lost", "lost_chance"), below="by one tensor"),
        number("forecast_nats_per_token=", "forecast", forecast, below="nats per token"),
        number("score_change", "score change", partial(fixed, decimals=2), below="rms"),
        notes=[note],
        main=True,
    )


def cosine_table(layers: Sequence[LayerAnalysis]) -> Table:
    """Return a table of the cosines of each layer's weights, by three definitions."""
    note = (
        "“Flattened” is the cosine of the two matrices, taken as vectors. “Columns” is the mean "
        "cosine of corresponding channels. “Heads” is the mean absolute cosine of corresponding "
        "heads. If one weight has fewer heads, each of its heads is compared with all heads of its "
        "group in the other weight. The cosine of random matrices has a mean of 0. Its standard "
        "deviation, derived as 1/sqrt(entries), is printed beneath each value."
    )

    def cell(value: float | None, deviation: float) -> Cell:
        text = MISSING if value is None else fixed(value, 3, sign=True)
        return Cell(raw=value, text=text, below=(f"± {real(deviation, 2)}",))

    rows: list[dict[str, int | str | Cell]] = []
    for layer in layers:
        for pair in layer.cosines:
            heads = [abs(value) for value in pair.heads if value is not None]
            rows.append(
                {
                    "number": layer.number,
                    "weights": f"{_LETTERS[pair.first]}, {_LETTERS[pair.second]}",
                    "flattened": cell(pair.flattened, pair.deviation),
                    "columns": cell(pair.columns, pair.deviation),
                    "heads": cell(fmean(heads) if heads else None, pair.head_deviation),
                }
            )
    return tabulate(
        "cosines",
        "Cosines of weights",
        rows,
        _LAYER,
        word("weights"),
        number("flattened"),
        number("columns"),
        number("heads", below="mean |cos|"),
        notes=[note],
    )


def rank_table(layers: Sequence[LayerAnalysis]) -> Table:
    """Return a table of the effective ranks of each layer's weights.

    The rank of W_Q W_K^T is a mean over heads.
    """
    rows: list[dict[str, Raw | Cell]] = []
    for layer in layers:
        for name, letters in _LETTERS.items():
            is_product = name == "query-key"
            chosen = [
                rank
                for rank in layer.ranks
                if rank.matrix == name and (rank.head is not None) == is_product
            ]
            size = chosen[0].rows, chosen[0].columns
            rows.append(
                {
                    "number": layer.number,
                    "matrix": plain(letters, letters + ", mean of heads" * is_product),
                    "shape": plain("{} x {}".format(*size), "{} × {}".format(*size)),
                    **{kind: _rank(chosen, kind) for kind in _KINDS},
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
        *(number(f"energy_{share}", f"{share} %", below="of energy") for share in (90, 95, 99)),
        notes=[
            (
                "Beneath each value is the value for random matrices of the same shape, whose "
                "entries are independent and normally distributed."
            )
        ],
    )


def _rank(ranks: Sequence[RankReading], kind: str) -> Cell:
    def mean(values: Sequence[float]) -> float:
        return values[0] if len(values) == 1 else fmean(values)

    def write(value: float) -> str:
        return whole(round(value)) if isinstance(value, int) or value >= 100 else fixed(value, 1)

    found = mean([getattr(rank.found, kind) for rank in ranks])
    chance = mean([getattr(rank.chance, kind) for rank in ranks])
    return Cell(raw=found, text=write(found), below=(f"random {write(chance)}",))


def attention_table(layers: Sequence[LayerAnalysis]) -> Table:
    """Return a table of each layer's attention: mean entropy, distance and asymmetry of heads."""

    def uniform(name: str, decimals: int) -> Callable[[LayerAnalysis], Cell]:
        write = partial(fixed, decimals=decimals)
        return _mean("attention", write, name, f"uniform_{name}", "uniform")

    asymmetries = {
        "score_asymmetry": "scores",
        "unmasked_asymmetry": "softmax, no mask",
        "asymmetry": "attention",
        "mask_asymmetry": "due to the mask",
    }
    asymmetry = partial(_mean, "attention", partial(fixed, decimals=2))
    note = (
        "All values are means over heads. “Uniform” marks the value for equal weights on all "
        "visible keys. The asymmetry is |A - A^T| / |A + A^T|; it is 0 for a symmetric matrix and "
        "near 1 if the entries above and below the diagonal are unrelated. “Due to the mask” is "
        "the asymmetry of attention with the symmetric scores (S + S^T) / 2. Only the mask makes "
        "that attention asymmetric."
    )
    return tabulate(
        "attention",
        "Attention, layer by layer",
        layers,
        _LAYER,
        number("entropy_nats=", "entropy", uniform("entropy", 2), below="nats"),
        number("distance_tokens=", "distance", uniform("distance", 1), below="tokens"),
        number("diagonal=", "own token", uniform("diagonal", 3), below="weight"),
        *(
            number(f"{name}=", "asymmetry", asymmetry(name), below=below)
            for name, below in asymmetries.items()
        ),
        notes=[note],
    )
