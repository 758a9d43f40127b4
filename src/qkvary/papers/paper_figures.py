"""The papers' experimental figures, with the studies from whose runs they can be drawn.

A figure is one entry of ``PAPER_FIGURES``. Never imports torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

FigureKind = Literal["curves", "maps", "diagonal", "sets", "blocks", "printed", "transfer"]
"""The content of a figure:

- ``curves``: learning curves;
- ``maps``: attention maps;
- ``diagonal``: scores before and after the normalisation of their diagonal;
- ``sets``: sets of images with the odd one out;
- ``blocks``: the block of each variant;
- ``printed``: quality and cache as printed;
- ``transfer``: errors of a learned change of basis, by width.
"""

KAYYAM = "Do Transformers Need Three Projections? (Kayyam et al. 2026)"
BORJI = "Key-Value Transformer (Borji 2023)"
KARBEVSKI = "[Key,Value] is probably all you need (Karbevski and Mijoski 2025)"
LOSSES = ("train loss", "validation loss")
_FIRST_THREE = ("QKV", "Q=K-V", "(Q=K-V)+")


@dataclass(frozen=True, slots=True)
class Records:
    """The runs of a study from which a panel is drawn."""

    study: str
    """The name of the study."""
    task: str
    """The task of the study's settings."""
    differs: str = ""
    """The differences from the published runs, apart from the number of runs. May be empty."""
    where: Mapping[str, str] = field(default_factory=dict[str, str])
    """Fields of the task and their values. Only settings with these values are drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A part of a figure, such as the curves of one task."""

    title: str
    records: tuple[Records, ...]
    """Possible runs for the panel; the first that exist are drawn."""
    quantities: tuple[str, ...] = LOSSES
    """The quantities of learning curves to draw, each separately."""
    each_setting: bool = False
    """Whether to draw each setting separately, rather than the mean over settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperFigure:
    """A figure of a paper."""

    name: str
    """The paper's name, ``figure`` and the number."""
    paper: str
    title: str
    kind: FigureKind
    variants: tuple[str, ...] = ()
    panels: tuple[Panel, ...] = ()
    published: tuple[str, ...] = ()
    """The published tables with numbers from the same experiments."""

    @property
    def place(self) -> str:
        """The figure's number in the paper, as in ``Figure 2``."""
        return f"Figure {self.name.rpartition('-')[2]}"


def _panel(title: str, task: str, *quick: Records, studies: str = "vision", **where: str) -> Panel:
    """Return a panel of a task.

    It is drawn from the first of ``STUDIES-published``, ``STUDIES-paper`` and ``quick`` with runs.
    """
    sizes = (Records(f"{studies}-{size}", task, where=where) for size in ("published", "paper"))
    return Panel(title=title, records=(*sizes, *quick))


def _synthetic(title: str, *quick: Records) -> Panel:
    """Return a panel of a synthetic task, drawn from ``quick`` if no larger study has runs."""
    return _panel(title, title.lower(), *quick, studies="synthetic")


def _translation(title: str, source: str) -> Panel:
    quick = Records(
        "translation-quick-as-published",
        "translation",
        "one layer, fewer epochs, another schedule and no tokens for rare words",
        {"source": source},
    )
    panel = _panel(title, "translation", quick, studies="translation", source=source)
    records = tuple(
        replace(one, differs=f"{one.differs}; {_SPLIT}" if one.differs else _SPLIT)
        for one in panel.records
    )
    quantities = (*LOSSES, "validation published_bleu")
    return replace(panel, records=records, quantities=quantities, each_setting=True)


_SPLIT = "BLEU by epoch is measured on the validation split here, but on the test set in the paper"
_ONE_SETTING = "one small setting, trained for fewer epochs"
_OTHER_SIZES = "sizes and steps other than the published ones"
_VISION_PART, _OF_GRID = "vision-published-part", "1 of the 48 published configurations"
_PART = "synthetic-published-part"
_OF_ALL = "4 of the 16 published configurations"
_SYNTHETIC = (
    _synthetic("Reverse", Records(_PART, "reverse", _OF_ALL)),
    _synthetic("Sort", Records("quickstart", "sort", _OTHER_SIZES)),
    _synthetic(
        "Swap", Records(_PART, "swap", _OF_ALL), Records("quickstart", "swap", _OTHER_SIZES)
    ),
    _synthetic("Sub"),
    _synthetic("Copy"),
)
_SYNTHETIC_LOSSES = PaperFigure(
    name="key-value-figure-2",
    paper=BORJI,
    title="Loss over time, synthetic tasks",
    kind="curves",
    variants=_FIRST_THREE,
    panels=_SYNTHETIC,
    # Paper 1 prints the same experiments, and more of our reports have its numbers.
    published=("key-value-table-2", "key-value-notebook-synthetic", "three-projections-table-2"),
)
_SYNTHETIC_MAPS = PaperFigure(
    name="key-value-figure-3",
    paper=BORJI,
    title="Attention maps, synthetic tasks",
    kind="maps",
    variants=_FIRST_THREE,
    panels=_SYNTHETIC,
)

_SHARED = ("QKV", "Q-K=V", "Q=K-V", "Q=K=V")
_HEADS = ("QKV", "GQA-4", "MQA", "Q-GQA-4", "Q-MQA")


def _language_models(name: str, size: str, variants: Sequence[str], more: str = "") -> PaperFigure:
    """Return a figure of validation curves, drawn from small networks."""
    differs = (
        "1.6M parameters, trained on the bytes of novels, with rotary positions; the paper has "
        f"{size} parameters, trained on tokens{more}"
    )
    return PaperFigure(
        name=name,
        paper=KAYYAM,
        title=f"Validation loss of language models, {size}",
        kind="curves",
        variants=tuple(f"{one}@rotary" for one in variants),
        panels=(
            Panel(
                title="Language models",
                records=(Records("lm-small", "language", differs),),
                quantities=("validation loss", "validation perplexity"),
            ),
        ),
    )


_FIGURES = (
    PaperFigure(
        name="three-projections-figure-1",
        paper=KAYYAM,
        title="Variants of attention",
        kind="blocks",
        variants=("QKV", "Q=K-V", "(Q=K-V)+", "Q-K=V", "Q=K=V", "(Q=K=V)+"),
    ),
    PaperFigure(
        name="three-projections-figure-2",
        paper=KAYYAM,
        title="Training loss and validation accuracy, Tiny ImageNet",
        kind="curves",
        variants=("QKV", "Q=K-V", "Q-K=V", "Q=K=V"),
        panels=(
            Panel(
                title="Tiny ImageNet",
                records=(
                    Records("tiny-imagenet-paper", "tiny-imagenet"),
                    Records(
                        "tiny-imagenet-quick",
                        "tiny-imagenet-20",
                        "20 of the 200 classes, a small network, and fewer epochs",
                    ),
                ),
                quantities=("train loss", "validation accuracy"),
            ),
        ),
        published=("three-projections-table-3",),
    ),
    replace(
        _SYNTHETIC_LOSSES,
        name="three-projections-figure-3",
        paper=KAYYAM,
        published=("three-projections-table-2",),
    ),
    replace(_SYNTHETIC_MAPS, name="three-projections-figure-4", paper=KAYYAM),
    PaperFigure(
        name="three-projections-figure-5",
        paper=KAYYAM,
        title="Self-attention scores with a normalised diagonal",
        kind="diagonal",
    ),
    PaperFigure(
        name="three-projections-figure-6",
        paper=KAYYAM,
        title="Sets of images with an anomaly, CIFAR-100",
        kind="sets",
        panels=(
            Panel(
                title="Set anomaly",
                records=(
                    Records("anomaly-paper", "anomaly", where={"features": "cifar100-resnet34"}),
                    Records("anomaly-quick", "anomaly", where={"features": "cifar100-50"}),
                ),
            ),
        ),
    ),
    PaperFigure(
        name="three-projections-figure-7",
        paper=KAYYAM,
        title="Perplexity and cache with shared projections, 300M",
        kind="printed",
        variants=_SHARED,
    ),
    PaperFigure(
        name="three-projections-figure-8",
        paper=KAYYAM,
        title="Perplexity and cache with shared heads, 300M",
        kind="printed",
        variants=_HEADS,
    ),
    PaperFigure(
        name="three-projections-figure-9",
        paper=KAYYAM,
        title="Quality against cache, 300M",
        kind="printed",
        variants=(*_SHARED, *_HEADS[1:]),
    ),
    _language_models("three-projections-figure-10", "300M", (*_SHARED, *_HEADS[1:])),
    _language_models(
        "three-projections-figure-11",
        "1.2B",
        ("QKV", "Q-K=V", "GQA-8", "MQA", "Q-MQA"),
        ", and also Q-GQA-8",
    ),
    _SYNTHETIC_LOSSES,
    _SYNTHETIC_MAPS,
    PaperFigure(
        name="key-value-figure-4",
        paper=BORJI,
        title="Loss over time, vision tasks",
        kind="curves",
        variants=_FIRST_THREE,
        panels=(
            _panel(
                "MNIST",
                "mnist",
                Records(_VISION_PART, "mnist", _OF_GRID),
                Records("mnist-quick", "mnist", _ONE_SETTING),
            ),
            _panel(
                "FashionMNIST",
                "fashion-mnist",
                Records("fashion-quick", "fashion-mnist", _ONE_SETTING),
            ),
            _panel(
                "CIFAR-10",
                "cifar10",
                Records("cifar10-quick", "cifar10-15k", f"15,000 images, {_ONE_SETTING}"),
            ),
            _panel(
                "CIFAR-100",
                "cifar100",
                Records("cifar100-quick", "cifar100-10k", f"10,000 images, {_ONE_SETTING}"),
            ),
            Panel(
                title="Set anomaly",
                records=(
                    Records("anomaly-paper", "anomaly"),
                    Records(
                        "anomaly-quick",
                        "anomaly",
                        "the image features come from a small network",
                        {"features": "cifar100-50", "order": "last"},
                    ),
                ),
            ),
        ),
        published=("key-value-table-3",),
    ),
    PaperFigure(
        name="key-value-figure-5",
        paper=BORJI,
        title="Loss over time, character generation",
        kind="curves",
        variants=_FIRST_THREE,
        panels=(
            Panel(
                title="Characters",
                records=(
                    Records("chars-published", "characters"),
                    Records(
                        "chars-published-first-1000", "characters", "the first 1,000 iterations"
                    ),
                    Records("chars-paper", "characters"),
                    Records("quickstart", "characters", _ONE_SETTING),
                ),
                each_setting=True,
            ),
        ),
        published=("key-value-notebook-characters", "key-value-notebook-characters-1000"),
    ),
    PaperFigure(
        name="key-value-figure-6",
        paper=BORJI,
        title="Loss by epoch, number generation",
        kind="curves",
        variants=_FIRST_THREE,
        panels=(
            Panel(
                title="Numbers",
                records=(
                    Records("numbers-paper", "numbers"),
                    Records(
                        "numbers-quick",
                        "numbers",
                        "the splits differ from the published ones, and only two settings were run",
                    ),
                ),
                each_setting=True,
            ),
        ),
        published=("key-value-notebook-numbers",),
    ),
    PaperFigure(
        name="key-value-figure-7",
        paper=BORJI,
        title="Loss and BLEU by epoch, translation",
        kind="curves",
        variants=_FIRST_THREE,
        panels=(
            _translation("German to English", "de"),
            _translation("English to German", "en"),
        ),
        published=("key-value-notebook-translation",),
    ),
    PaperFigure(
        name="query-identity-figure-1",
        paper=KARBEVSKI,
        title="Validation loss with and without query weights",
        kind="curves",
        variants=("QKV@rotary", "I-K-V@rotary"),
        panels=(
            Panel(
                title="Language models",
                records=(
                    Records(
                        "why-weight-decay",
                        "language",
                        "167k parameters, 240 steps and four weight decays; the paper has 124M "
                        "parameters and 100,000 steps",
                    ),
                ),
                quantities=("validation loss",),
                each_setting=True,
            ),
        ),
    ),
    PaperFigure(
        name="query-identity-figure-2",
        paper=KARBEVSKI,
        title="Errors of a learned change of basis",
        kind="transfer",
        # Possible readings of the missing formula, whose linear map has the printed error.
        variants=("skip without biases", "torch without biases"),
    ),
)
PAPER_FIGURES: Mapping[str, PaperFigure] = {figure.name: figure for figure in _FIGURES}
"""All figures by name, in the order of the papers."""
