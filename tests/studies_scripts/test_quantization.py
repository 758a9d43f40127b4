"""What rounded caches cost: ratios paired by seed, geometric means, and the page about them."""

import csv
import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from qkvary.arch.caches import CacheLayout
from qkvary.studies.catalog import load_study
from tests.studies_scripts.loading import folder_of, load_script

FOLDER = "quantization"
scales, page = load_script(FOLDER, "scale_records"), load_script(FOLDER, "scale_page")
script = load_script(FOLDER, "measure")

KEPT_FILE = '''"""A study of characters that keeps its networks."""

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.networks import BlockConfig, LanguageModelConfig
from qkvary.papers.key_value.protocols import synthetic_training
from qkvary.studies.study import Setting, Study
from qkvary.tasks.config import CharacterTaskConfig

STUDY = Study(
    name="kept",
    question="Which scales?",
    description="For a test.",
    settings=(
        Setting(
            name="characters",
            task=CharacterTaskConfig(context=37, evaluation="sampled", scored_characters=99),
            network=LanguageModelConfig(
                attention=AttentionConfig(d_model=8, num_heads=2, causal=True),
                block=BlockConfig(d_ff=9),
                num_layers=1,
                vocabulary=65,
                max_tokens=37,
            ),
            training=synthetic_training(steps=2, batch_size=3, evaluate_every=2),
            keep_networks=True,
        ),
    ),
    variants=("QKV", "Q-K=V"),
    seeds=(0,),
)
'''

FACTORS: Mapping[str, float] = {
    "g32": 1.0,
    "g32-rot": 0.9,
    "g32-r16": 0.5,
    "g32-r32": 0.4,
    "b32": 0.1,
    "b32-r16": 0.04,
    "b32-rot": 0.2,
}
VARIANTS = ("QKV@alibi", "Q-K=V@alibi", "QKV@rotary", "Q-K=V@rotary")


def figures(kl: float, *, drifts: bool = False, meets: bool = True) -> dict[str, Any]:
    return {
        "windows": 3,
        "context": 20,
        "mean_kl": kl,
        "median_kl": kl / 2,
        "perplexity_change": kl / 10,
        "top1": 1 - kl,
        "drifts": drifts,
        "meets_int8_gate": meets,
    }


def made_up(seeds: tuple[int, ...] = (0, 1, 2)) -> Any:
    """By channel a tenth of by token, fourfold for each bit less, twofold for one tensor."""
    records: list[Any] = []
    for variant in VARIANTS:
        for seed in seeds:
            cases: list[tuple[CacheLayout, int, str, float]] = [
                ("sources", bits, way, FACTORS[way]) for bits in scales.BITS for way in scales.WAYS
            ]
            if "rotary" in variant:
                cases += [("rotated", 4, "b32", 0.3)]
            for layout, bits, way, factor in cases:
                kl = (
                    1e-6
                    * 4.0 ** (8 - bits)
                    * factor
                    * (1 + 0.01 * seed * (bits + scales.WAYS.index(way)))
                )
                kl *= 1 + 0.001 * seed * len(variant) + 0.014 * seed * (layout == "sources")
                kl *= 2 if variant.startswith("Q-K=V") else 1
                records.append(
                    scales.ScaleRecord(
                        variant=variant,
                        seed=seed,
                        layout=layout,
                        bits=bits,
                        scales=way,
                        figures=figures(kl, drifts=bits == 3, meets=way != "g32"),
                    )
                )
    return scales.ScaleStudy(
        name="made-up",
        question="Which scales?",
        description="Nothing was measured.",
        command="python studies/ours/quantization/measure.py made-up",
        environment={"python": "3.11", "cpu": "an abacus"},
        started="2026-01-01T00:00:00+00:00",
        ended="2026-01-01T00:01:00+00:00",
        losses={variant: tuple(2.0 + seed for seed in seeds) for variant in VARIANTS},
        seeds=seeds,
        windows=3,
        context=20,
        records=tuple(records),
    )


def test_ratios_are_those_of_pairs() -> None:
    found = {(one.what, one.where, one.bits): one for one in made_up().ratios()}
    matched = "by channel instead of by token, with as many newest tokens as they are"
    by_channel = found[matched, "QKV@alibi", 4]
    assert math.exp(by_channel.log.mean or 0) == pytest.approx(0.1, rel=0.05)
    single = "by channel, newest tokens as they are, one tensor instead of two"
    one = found[single, "Q-K=V@rotary", 8]
    assert math.exp(one.log.mean or 0) == pytest.approx(2.0, rel=0.05)
    turned = found["by channel, keys stored rotated instead of not", "QKV@rotary", 4]
    assert math.exp(turned.log.mean or 0) == pytest.approx(3.0, rel=0.05)
    rotated = found["by token, rotated first instead of not", "Q-K=V@alibi", 8]
    logs = [
        math.log(0.9 * (1 + 0.01 * seed * (8 + 1)) / (1 + 0.01 * seed * 8)) for seed in (0, 1, 2)
    ]
    assert rotated.log.mean == pytest.approx(sum(logs) / 3)
    assert ("by channel, keys stored rotated instead of not", "QKV@alibi", 4) not in found
    assert len(found) == 4 * len(scales.RATIOS) * len(scales.RATIO_BITS) + 2 + 2 * 2 * len(
        scales.RATIO_BITS
    )


def test_all_intervals_hold_at_once() -> None:
    ratios = made_up().ratios()
    assert {one.log.confidence for one in ratios} == {1 - (1 - scales.CONFIDENCE) / len(ratios)}
    assert {one.verdict for one in ratios} <= {"lower", "higher", "not distinguished"}
    rotated = [one for one in ratios if one.what == "by channel, rotated first instead of not"]
    assert {one.verdict for one in rotated} == {"higher"}
    assert {one.verdict for one in made_up((0,)).ratios()} == {"no interval"}


def test_summaries_are_over_seeds() -> None:
    study = made_up()
    summaries = {(one.variant, one.layout, one.bits, one.scales): one for one in study.summaries()}
    assert len(summaries) == 4 * len(scales.WAYS) * len(scales.BITS) + 2
    one = summaries["QKV@alibi", "sources", 4, "g32"]
    values = [
        1e-6 * 256 * (1 + 0.04 * seed) * (1 + 0.009 * seed + 0.014 * seed) for seed in (0, 1, 2)
    ]
    assert math.exp(one.mean_kl.mean or 0) == pytest.approx(math.prod(values) ** (1 / 3))
    assert one.perplexity_change.mean == pytest.approx(sum(values) / 30)
    assert (one.seeds, one.meeting, one.drifting) == (3, 0, 0)
    assert summaries["QKV@alibi", "sources", 3, "b32"].drifting == 3


def test_the_page_says_how_to_run_it_again_and_what_was_found() -> None:
    study = made_up()
    files = page.scale_files(study)
    text = files["README.md"].decode()
    for said in (
        "# Which scales?",
        "    python studies/ours/quantization/measure.py made-up",
        "an abacus",
        f"({page.PICTURE})",
        "QKV@alibi: 8 bits 0.1",
        "was missed by: QKV@alibi g32 by 3 of 3",
        "4 bits, Q-K=V@rotary: the smallest mean KL has `b32-r16`",
        "correction for 50 comparisons",
    ):
        assert said in text, said
    assert " nan" not in text
    rows = list(csv.DictReader(io.StringIO(files["tables/storages.csv"].decode())))
    assert len(rows) == len(study.summaries())
    assert len(list(csv.reader(io.StringIO(files["tables/ratios.csv"].decode())))) == 51
    document = json.loads(files["records.json"])
    assert document["schema_version"] == 1
    assert len(document["records"]) == len(study.records)
    assert document["records"][0]["storage"] == "int8-g32"
    assert files[page.PICTURE].lstrip().startswith(b"<svg")


def test_a_study_of_one_seed_has_a_page_too() -> None:
    assert b"no interval" in page.scale_files(made_up((7,)))["README.md"]


def test_the_page_that_is_kept_is_that_of_its_records() -> None:
    kept = json.loads((folder_of(FOLDER) / "records.json").read_text("utf-8"))
    records: list[Any] = []
    for row in kept["records"]:
        bits, _, way = row["storage"].removeprefix("int").partition("-")
        record = scales.ScaleRecord(
            variant=row["variant"],
            seed=row["seed"],
            layout=row["layout"],
            bits=int(bits),
            scales=way,
            figures=row,
        )
        records.append(record)
    asked = load_study("quantization")
    study = scales.ScaleStudy(
        name=kept["study"],
        question=asked.question,
        description=asked.description,
        command="python studies/ours/quantization/measure.py",
        environment=kept["environment"],
        started=kept["started"],
        ended=kept["ended"],
        losses={variant: kept["losses"][variant] for variant in asked.variants},
        seeds=asked.seeds,
        windows=kept["records"][0]["windows"],
        context=kept["records"][0]["context"],
        records=tuple(records),
    )
    files = page.scale_files(study)
    for name in (
        page.PICTURE,
        "README.md",
        *(f"tables/{one}.csv" for one in ("ratios", "storages", "networks")),
    ):
        assert (folder_of(FOLDER) / name).read_bytes() == files[name], name


def test_networks_are_trained_and_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kept.py").write_text(KEPT_FILE, "utf-8")
    where = ["--out", str(tmp_path / "runs"), "--to", str(tmp_path / "page"), "--workers", "1"]
    words = [str(tmp_path / "kept.py"), "--windows", "2", *where]
    script.main(words)
    first = json.loads((tmp_path / "page" / "records.json").read_text("utf-8"))
    assert len(first["records"]) == 2 * len(scales.WAYS) * len(scales.BITS)

    def load(_: Path) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(script, "load_checkpoint", load)
    script.main(words)
    again = json.loads((tmp_path / "page" / "records.json").read_text("utf-8"))
    assert again["records"] == first["records"]
    capsys.readouterr()
    with pytest.raises(SystemExit, match="2"):
        script.main(["chars-paper", *where])
    assert "expected windows from 1, and a study that keeps" in capsys.readouterr().err
