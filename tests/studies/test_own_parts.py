"""Parts of a user's own file: they compute what they say, are identified, counted out, saved."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest
import torch

import qkvary as qk
from qkvary.arch.attention import AttentionConfig
from qkvary.arch.caches import CacheOptions
from qkvary.arch.labels import parse_variant
from qkvary.arch.terms import OWN
from qkvary.checkpoints.models import save_model
from qkvary.conversions.caches.forms import check_layers
from qkvary.inference.decoding import generate
from qkvary.nn.attention import make_attention
from qkvary.nn.cache import LayerCache
from qkvary.nn.initializer import Initializer
from qkvary.nn.kernels import Core
from qkvary.nn.own import own
from qkvary.nn.terms import Scores, ScoreTerm
from qkvary.reports.study_results import gather_results
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.studies.catalog import load_study
from qkvary.studies.running.executors.local import LocalExecutor
from qkvary.studies.running.runner import StudyRunner
from qkvary.studies.running.store import Store
from tests.conftest import Runner

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
ATTENTION = EXAMPLES / "own_attention.py"
LABELS = (
    "Q-K=V@own-head-temperature",
    "QKV@own-query-key-norm",
    "QKV@own-off-by-one",
    "Q-K=V@own-gated",
)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [*OWN]:
        monkeypatch.delitem(OWN, name)
    load_study(str(ATTENTION))
    yield
    OWN.clear()


def shorten(source: Path, folder: Path, *changes: tuple[str, str]) -> Path:
    """Write an example with fewer steps and seeds, and perhaps other changes."""
    text = source.read_text("utf-8")
    for old, new in (("steps=60", "steps=4"), ("steps=40", "steps=4"), *changes):
        text = text.replace(old, new)
    path = folder / source.name
    path.write_text(text.replace("seeds=(0, 1)", "seeds=(0,)"), "utf-8")
    return path


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_every_example_runs_in_worker_processes(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OWN_IMAGES", str(tmp_path / "images.npz"))
    OWN.clear()
    study, store = load_study(str(shorten(example, tmp_path))), Store(tmp_path / "runs")
    ran = StudyRunner(study, store, executor=LocalExecutor(1)).run()
    assert ran.done == ran.planned > 1
    caveats = gather_results(study, store).summary.caveats
    not_counted = [one for one in caveats if "do not count" in one]
    assert len(not_counted) == (example.stem != "own_task")


@pytest.mark.parametrize("label", LABELS)
def test_steps_through_a_cache_are_one_pass(label: str) -> None:
    config = AttentionConfig(d_model=20, num_heads=4, variant=parse_variant(label), causal=True)
    layer = make_attention(config).double().eval()
    for number, parameter in enumerate(layer.parameters()):
        values = torch.empty(parameter.shape, dtype=torch.float64)
        generator = torch.Generator().manual_seed(number)
        parameter.data.copy_(values.normal_(0.0, 0.4, generator=generator))
    x = torch.randn(2, 9, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    options = CacheOptions(layout="rotated", storage="preallocated", kernel="folded")
    cache = LayerCache(config, 9, options)
    with torch.inference_mode():
        whole = layer(x)
        steps = torch.cat([layer(part, cache=cache) for part in x.split((5, 1, 1, 2), dim=1)], 1)
    torch.testing.assert_close(steps, whole, rtol=1e-10, atol=1e-12)
    plain = make_attention(
        dataclasses.replace(config, variant=dataclasses.replace(config.variant, own=None))
    )
    plain.double().load_state_dict(layer.state_dict(), strict=False)
    assert not torch.allclose(plain(x), whole)


@pytest.mark.parametrize("is_stated", [True, False])
def test_a_run_depends_on_the_stated_version_or_on_the_file(
    tmp_path: Path, *, is_stated: bool
) -> None:
    stated = ('    version = "1"\n', '    version = "1"\n' if is_stated else "")
    keys: list[dict[str, str]] = []
    for number, change in enumerate((("", ""), (".exp()", ".exp2()"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        OWN.clear()
        cells = load_study(str(shorten(ATTENTION, folder, stated, change))).cells()
        keys.append({cell.variant: cell.run_key for cell in cells})
    before, after = keys
    changed = {label for label in before if before[label] != after[label]}
    assert changed == (set() if is_stated else set(LABELS))


def test_another_process_knows_a_run_by_its_file(tmp_path: Path, run_python: Runner) -> None:
    """However an executor sends it."""
    runs = [cell.run for cell in load_study(str(ATTENTION)).cells()]
    runs += [cell.run for cell in load_study(str(EXAMPLES / "own_network.py")).cells()]
    (tmp_path / "runs").write_bytes(bytes(ForkingPickler.dumps(runs)))
    code = (
        "import pickle; from pathlib import Path; "
        f"runs = pickle.loads(Path({str(tmp_path / 'runs')!r}).read_bytes()); "
        "print(*(run.run_key for run in runs))"
    )
    assert run_python(["-c", code]).stdout.split() == [run.run_key for run in runs]


@pytest.mark.parametrize("label", [LABELS[0], LABELS[3]])
def test_a_saved_network_says_what_it_needs(
    label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = qk.LanguageModel(
        d_model=12, num_heads=3, num_layers=2, vocabulary=17, max_tokens=16, variant=label, seed=3
    )
    save_model(tmp_path / "model", model)
    manifest = json.loads((tmp_path / "model" / "MANIFEST.json").read_text())
    assert [*manifest["about"]["needs"].values()] == ["1"]
    for name in [*OWN]:
        monkeypatch.delitem(OWN, name)
    with pytest.raises(UsageError, match="code="):
        qk.load(tmp_path / "model")
    loaded, _ = qk.load(tmp_path / "model", code=ATTENTION)
    prompts = [[3, 1, 4]]
    with torch.inference_mode():
        tokens = torch.tensor(prompts)
        assert torch.equal(loaded(tokens), model.eval()(tokens))
    assert generate(loaded, prompts, max_new_tokens=4) == generate(model, prompts, max_new_tokens=4)
    other = shorten(ATTENTION, tmp_path, ('version = "1"', 'version = "2"'))
    OWN.clear()
    with pytest.warns(UserWarning, match="the code of .* has changed since"):
        qk.load(tmp_path / "model", code=other)


def test_data_without_a_fingerprint_is_that_of_the_file_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OWN_IMAGES", str(tmp_path / "images.npz"))
    task = load_study(str(EXAMPLES / "own_task.py")).settings[0].task
    assert len(task.data_fingerprint) == 64
    bare = dataclasses.replace(task, data_sha256=None)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="expected data_sha256"):
        bare.data_fingerprint  # noqa: B018
    assert bare.pinned() == task
    (tmp_path / "images.npz").write_bytes(b"other")
    assert bare.pinned() != task
    with pytest.raises(DamagedError, match="the data is different or was changed"):
        task.check_data(pytest.fail)


class Known(ScoreTerm):
    """A term that is not registered."""

    def forward(self, scores: Scores) -> Scores:
        return scores


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: parse_variant("QKV@own-nothing"), "got own-nothing"),
        (lambda: own("x", "nothing")(int), "expected a ScoreTerm, a Core or an Attention"),  # type: ignore[type-var]
        (lambda: own("gated", "other")(Known), "expected a new name, got 'gated'"),
        (lambda: parse_variant("QKV@own-gate"), "did you mean own-gated?"),
        (lambda: own("My Gate", ""), "expected lowercase letters.* got 'My Gate'"),
        (lambda: own("", ""), "expected lowercase letters"),
        (lambda: own(3, ""), "got 3"),  # type: ignore[arg-type]
        (
            lambda: own("bare", "")(type("Bare", (Core,), {})),
            "the method weights in Bare, got none",
        ),
        (lambda: own("bare", "")(type("Bare", (ScoreTerm,), {})), "the method forward in Bare"),
    ],
)
def test_what_is_not_registered_is_refused(act: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        act()


def make(kind: type, **members: object) -> torch.nn.Module:
    """A layer with a part of the user's own."""
    own("made", "made here")(type("Made", (kind,), members))
    config = AttentionConfig(d_model=8, num_heads=2, variant=parse_variant("QKV@own-made"))
    layer = make_attention(config).eval()
    layer.initialize(Initializer(0, "attention"))
    return layer


@pytest.mark.parametrize(
    ("kind", "method", "expected"),
    [
        (ScoreTerm, "forward", "expected Scores from Made.forward, got None"),
        (Core, "weights", "expected Tensor from Made.weights, got None"),
        (qk.Attention, "output", "expected Tensor from Made.output, got None"),
    ],
)
def test_what_a_part_returns_is_checked(kind: type, method: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        make(kind, **{method: lambda *_: None})(torch.zeros(1, 3, 8))


def test_a_core_needs_its_weights_alone() -> None:
    layer = make(Core, weights=lambda _, scores: torch.softmax(scores.multiply(), dim=-1))
    plain = qk.Attention(d_model=8, num_heads=2).eval()
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(1, 3, 8, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(layer(x), plain(x))


def test_a_network_with_an_own_part_is_not_exported_or_converted(tmp_path: Path) -> None:
    model = qk.LanguageModel(
        d_model=12, num_heads=3, num_layers=1, vocabulary=17, max_tokens=16, variant=LABELS[3]
    )
    for to in ("transformers", "hf", "gguf"):
        with pytest.raises(UsageError, match=r"gated .*of your own|of your own.*gated"):
            qk.export((model, None), tmp_path / "out.gguf", to=to)
    with pytest.raises(UsageError, match=r"it has gated .*a part of your own"):
        check_layers(model.config)
