"""Defines the configurations of tasks, with the fingerprints of their data. Torch-free.

The configurations of image tasks are in ``image_config``.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

# The kinds of image tasks are stored under names that this import registers.
import qkvary.tasks.image_config  # noqa: F401  # pyright: ignore[reportUnusedImport]
from qkvary.arch.canonical import ADDED_LATER, NOT_IDENTIFYING, stored
from qkvary.arch.networks import Network
from qkvary.arch.parts import check_rates, check_word
from qkvary.data.catalog import data_module
from qkvary.data.checksums import MULTI30K_SHA256, TINY_SHAKESPEARE_SHA256
from qkvary.tasks.config_parts import (
    Accuracy,
    DrawnExamples,
    HashedData,
    Scale,
    TaskConfig,
    TokenPrediction,
    digest,
)

SequenceTaskName = Literal["reverse", "sort", "sub", "swap", "copy"]
Protocol = Literal["packed", "padded-paper"]
NumberProtocol = Literal["as-published", "clean"]
TranslationProtocol = Literal["as-published", "clean"]

TEXT_VOCABULARY = 257
"""Vocabulary size of labelled texts: 256 bytes, and a token that pads short texts."""
MULTI30K_TOKENS = 14
"""Average number of tokens of a training sentence of Multi30k, with the end token. The rounded
average is the same in both languages."""
PADDING_MULTIPLE = 64
"""Vocabulary sizes of language models are rounded up to a multiple of this number, as in the papers
and the presets."""
_RIGHT_CELLS = {
    "reverse": "the row's position, counted from the end",
    "copy": "the row's own position",
    "sub": "the row's own position",
    "swap": "the position half a sequence away from the row's own",
}


@stored("SequenceTaskConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceTaskConfig(DrawnExamples):
    """A synthetic task: predict a fixed rearrangement of a random sequence.

    Source: Borji 2023, section 3.1, and its public code.
    """

    module: ClassVar[str] = "qkvary.tasks.digit_sequences"
    name: SequenceTaskName
    """The task: reverse, sort, sub (replaces x by 9 - x), swap (exchanges the halves) or copy."""
    vocabulary: int = 10
    """Number of distinct symbols, which are drawn uniformly."""
    train_examples: int = 50_000
    validation_examples: int = 1_000
    test_examples: int = 10_000

    def __post_init__(self) -> None:
        TaskConfig.__post_init__(self)
        if self.vocabulary < 2:
            raise ValueError(
                f"task {self.name}: vocabulary must be at least 2, got {self.vocabulary}"
            )

    @property
    def data_fingerprint(self) -> str:
        """sha256 of the settings that determine the sequences; all five tasks use the same ones."""
        return digest("sequences", 1, self.length, self.vocabulary, *self.drawn)

    @property
    def right_cell(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """A phrase for the cell of an attention map that holds the answer of its row."""
        return _RIGHT_CELLS.get(self.name, TaskConfig.right_cell)


@stored("RecallTaskConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class RecallTaskConfig(DrawnExamples):
    """Multi-query associative recall: answer each key with the value that followed it.

    Source: Arora et al. 2023 (Zoology), section 4, and its code.
    """

    module: ClassVar[str] = "qkvary.tasks.recall"
    name: Literal["recall"] = "recall"
    length: int
    """Tokens per sequence. The pairs come first, then the queries. All other tokens are zeros."""
    pairs: int
    """Key-value pairs per sequence; each is queried once."""
    vocabulary: int = 8_192
    """Number of distinct tokens. Token 0 fills gaps; keys are the lower half, values the upper."""
    power: float = 0.01
    """Exponent of the distribution of query distances. With 1, all distances are equally likely;
    smaller values favour small distances."""
    train_examples: int = 100_000
    validation_examples: int = 1_000
    test_examples: int = 3_000

    def __post_init__(self) -> None:
        TaskConfig.__post_init__(self)
        if not 0.0 < self.power <= 1.0:
            raise ValueError(f"task recall: power must be above 0 and at most 1, got {self.power}")
        for name, least in (("length", 4 * self.pairs), ("vocabulary", 2 * self.pairs + 2)):
            if getattr(self, name) < least:
                raise ValueError(
                    f"task recall: {name} must be at least {least:,} for {self.pairs:,} pairs, got "
                    f"{getattr(self, name):,}"
                )

    @property
    def data_fingerprint(self) -> str:
        """sha256 of the settings that determine the sequences."""
        sizes = self.length, self.pairs, self.vocabulary, self.power
        return digest("recall", 1, *sizes, *self.drawn)

    def scale(self, network: Network, metric: str) -> Scale | None:
        """Return the accuracies of the best guess from positions alone and of a perfect solver.

        Return None for another metric.
        """
        del network
        if not metric.endswith("accuracy"):
            return None
        guess = data_module("recall").score_positions(self.length, self.pairs, self.power)
        return Scale(guess, 1.0)


@stored("CharacterTaskConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class CharacterTaskConfig(TokenPrediction):
    """Predict the next character of a text.

    Source: Borji 2023, section 3.5 (tiny Shakespeare).
    """

    module: ClassVar[str] = "qkvary.tasks.characters"
    has_test: ClassVar[bool] = False
    """The last part of the text is both validation and test split."""
    is_language: ClassVar[bool] = True
    name: Literal["characters"] = "characters"
    evaluation: Literal["exact", "sampled"] = "exact"
    """Method of validation: ``exact`` scores every held-out character once, and ``sampled`` scores
    random windows. The test is always exact."""
    evaluation_batches: int = 200
    evaluation_batch_size: int = 64
    scored_characters: int | None = None
    """Number of held-out characters to score, counted from the first; None for all."""
    train_fraction: float = 0.9
    """Fraction of the text that is training data; the rest is validation data."""
    text_sha256: str = TINY_SHAKESPEARE_SHA256

    def __post_init__(self) -> None:
        TaskConfig.__post_init__(self)
        if not 0.0 < self.train_fraction < 1.0:
            raise ValueError(
                f"task characters: train_fraction must be between 0 and 1, "
                f"got {self.train_fraction}"
            )

    @property
    def data_fingerprint(self) -> str:
        """sha256 of the text and its split."""
        return digest("characters", self.text_sha256, self.train_fraction)


@stored("MaskedTaskConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedTaskConfig(TokenPrediction):
    """Predict hidden characters of tiny Shakespeare from the characters on both sides.

    Source: Devlin et al. 2019 (BERT), section 3.1.
    """

    module: ClassVar[str] = "qkvary.tasks.masked"
    has_test: ClassVar[bool] = False
    """The last tenth of the text is both validation and test split."""
    name: Literal["masked"] = "masked"
    share: float = 0.15
    """Share of a window's characters to predict; at least one character is always predicted."""
    scored_characters: int | None = None
    """Number of held-out characters whose windows are scored, counted from the first; None for
    all."""
    evaluation_batch_size: int = 64

    def __post_init__(self) -> None:
        TaskConfig.__post_init__(self)
        if not 0.0 < self.share <= 1.0:
            raise ValueError(f"task masked: share must be in (0, 1], got {self.share}")

    @property
    def data_fingerprint(self) -> str:
        """sha256 of the text and of the settings that determine what is hidden."""
        sizes = self.context, self.share
        return digest("masked", 1, TINY_SHAKESPEARE_SHA256, *sizes)


@stored("LanguageTaskConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageTaskConfig(HashedData, TokenPrediction):
    """Predict the next token of a prepared set of documents.

    Source: the language models of papers 1 and 3.
    """

    module: ClassVar[str] = "qkvary.tasks.language"
    is_language: ClassVar[bool] = True
    name: Literal["language"] = "language"
    data: str = field(metadata=NOT_IDENTIFYING)
    """Folder or name of the prepared data set; not part of a run's identity."""
    data_sha256: str | None = None
    has_test: bool = field(  # pyright: ignore[reportIncompatibleVariableOverride]
        default=True, metadata={**NOT_IDENTIFYING, **ADDED_LATER}
    )
    """Whether the set has a test split; otherwise the validation split is scored at the end."""
    protocol: Protocol = "packed"
    """``packed`` cuts the concatenated documents into windows without padding. ``padded-paper``
    puts the first tokens of one document into each row and counts padding in the loss, as paper 1
    does."""
    document_mask: bool = False
    """Whether tokens attend only to tokens of their own document; requires ``packed``."""
    validation_tokens: int | None = None
    """Number of validation tokens to score, counted from the first; None for all."""
    test_tokens: int | None = None
    """Number of test tokens to score, counted from the first; None for all."""
    evaluation_batch_size: int = 16

    def __post_init__(self) -> None:
        TaskConfig.__post_init__(self)
        if self.document_mask and self.protocol != "packed":
            raise ValueError(
                "expected the protocol `packed` with document_mask=True, got "
                f"{self.protocol}, which has one document per row"
            )

    def count_answers(self, network: Network) -> int | None:
        """Return the smallest vocabulary that is padded to the size of the network's vocabulary."""
        rows: int | None = getattr(network, "vocabulary", None)
        is_padded = rows is not None and rows > PADDING_MULTIPLE and not rows % PADDING_MULTIPLE
        return rows - PADDING_MULTIPLE + 1 if rows is not None and is_padded else rows

    def find_fingerprint(self) -> str:
        """Return the fingerprint of the data set. If possible, the set is prepared first."""
        return data_module("prepared").read_fingerprint(
            data_module("prepared_sets").ensure_prepared(self.data)
        )

    def check_data(self, report: Callable[[str], None]) -> None:
        """Check the prepared data set. If the set of a named corpus is missing, prepare it."""
        data_module("prepared_sets").ensure_prepared(self.data, self.data_fingerprint, report)


@stored("NumberTaskConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class NumberTaskConfig(TokenPrediction):
    """Predict the next word of the spelled numbers from 1 to 9,999.

    Source: Borji 2023, section 3.3 (number generation), and its code.
    """

    module: ClassVar[str] = "qkvary.tasks.numbers"
    name: Literal["numbers"] = "numbers"
    protocol: NumberProtocol = "as-published"
    """``as-published`` omits the number 8000, trains on the first 80 % of the windows, and uses the
    other windows for both validation and test. ``clean`` has all numbers. Of every ten windows,
    eight are for training, one for validation and one for testing."""

    @property
    def has_test(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the test windows differ from the validation windows."""
        return self.protocol == "clean"

    @property
    def data_fingerprint(self) -> str:
        """sha256 of the settings that determine the windows."""
        return digest("numbers", 1, self.protocol, self.context)


@stored("TextTaskConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class TextTaskConfig(HashedData, Accuracy):
    """Predict the label of a text from some of its bytes."""

    module: ClassVar[str] = "qkvary.tasks.texts"
    name: Literal["texts"] = "texts"
    data: str = field(default="english-novels", metadata=NOT_IDENTIFYING)
    """A folder with one folder of ``.txt`` files per label, or ``english-novels`` for novels by
    author; not part of a run's identity."""
    labels: tuple[str, ...] | None = None
    """The labels to distinguish; None for all."""
    data_sha256: str | None = None
    context: int
    """Bytes per window; a shorter text is padded."""
    windows_per_label: int = 100
    """Number of scored windows per label, spread over the label's texts in a split. All labels have
    equally many, so a label with fewer windows reduces the number for all."""
    evaluation_batch_size: int = 100

    @property
    def sequence_length(self) -> int:
        """The number of tokens in one sequence. Costs are computed from this number."""
        return self.context

    def find_fingerprint(self) -> str:
        """Return the fingerprint of the texts that have one of the labels."""
        return data_module("labelled_texts").load_labelled_texts(self.data, self.labels).fingerprint


@stored("TranslationTaskConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationTaskConfig(HashedData, TaskConfig):
    """Translate sentences.

    Source: Borji 2023, section 3.6 (Multi30k), and its code.
    """

    module: ClassVar[str] = "qkvary.tasks.translation"
    higher_is_better: ClassVar[bool] = True
    name: Literal["translation"] = "translation"
    source: str
    """Language of the source sentences; ``de`` or ``en`` for Multi30k."""
    target: str
    protocol: TranslationProtocol = "clean"
    """``clean`` averages the loss over tokens without padding; its metric is the BLEU of sacreBLEU.
    ``as-published`` includes padding in the average; its metric is the BLEU of paper 2's code,
    which compares words and counts the begin and end tokens."""
    min_count: int = 1
    """Minimum number of occurrences in the training split for a word to get a token."""
    label_smoothing: float = 0.1
    """Share of the probability that is spread over words other than the target."""
    max_tokens: int = 100
    """Maximum tokens of a source (begin and end included) or of a translation (end included)."""
    evaluation_batch_size: int = 50
    data: str = field(default="multi30k", metadata=NOT_IDENTIFYING)
    """``multi30k``, or the folder of a corpus whose files are named as in Multi30k, or the common
    part of the paths of two files (``mine`` for ``mine.fr`` and ``mine.en``). Not part of a run's
    identity."""
    data_sha256: str | None = None
    """Fingerprint of the files. For Multi30k, it need not be given."""

    def __post_init__(self) -> None:
        TaskConfig.__post_init__(self)
        if self.source == self.target:
            raise ValueError(
                f"task translation: expected two languages, got {self.source} for both"
            )
        if self.data == "multi30k":
            if self.data_sha256 is None:
                object.__setattr__(self, "data_sha256", MULTI30K_SHA256)
            check_word("language of Multi30k", self.source, ("de", "en"))
            check_word("language of Multi30k", self.target, ("de", "en"))
        check_rates(self, "label_smoothing")

    @property
    def sequence_length(self) -> int:
        """The number of tokens in an average sentence. Costs are computed from this number."""
        return min(MULTI30K_TOKENS, self.max_tokens)

    @property
    def languages(self) -> tuple[str, str]:
        """Both languages, always in the same order."""
        return (min(self.source, self.target), max(self.source, self.target))

    @property
    def metric(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The headline metric."""
        return "bleu" if self.protocol == "clean" else "published_bleu"

    def scale(self, network: Network, metric: str) -> Scale | None:
        """Return the scores of a guess and of a perfect solver; a guess has a BLEU of 0."""
        if metric.endswith("bleu"):
            return Scale(0.0, 1.0 if metric.endswith("published_bleu") else 100.0)
        return TaskConfig.scale(self, network, metric)

    def find_fingerprint(self) -> str:
        """Return the fingerprint of the files."""
        return data_module("translations").load_translations(self.data, self.languages).fingerprint
