"""Configurations of tasks, with the fingerprints of their data. Torch-free."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

from qkvary.arch.canonical import ADDED_LATER, NOT_IDENTIFYING, stored
from qkvary.arch.choices import check_choices, check_word
from qkvary.data.checksums import MULTI30K_SHA256, TINY_SHAKESPEARE_SHA256
from qkvary.data.feature_sets import FEATURE_SETS, FeatureSetName
from qkvary.data.image_sets import IMAGE_SETS, ImageSet, OwnImages
from qkvary.data.recall_sizes import check_recall
from qkvary.tasks.config_parts import (
    ANOMALY_DATA_VERSION,
    MULTI30K_TOKENS,
    NUMBER_DATA_VERSION,
    RECALL_DATA_VERSION,
    SEQUENCE_DATA_VERSION,
    Accuracy,
    AnomalyOrder,
    DrawnExamples,
    Evaluation,
    HashedData,
    ImageSplits,
    NextToken,
    NumberProtocol,
    Protocol,
    SequenceTaskName,
    TranslationProtocol,
    check_sizes,
    digest,
)


@stored("SequenceTaskConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceTaskConfig(DrawnExamples):
    """A synthetic task: predict a fixed rearrangement of a random sequence.

    Source: Borji 2023, section 3.1, and its public code.
    """

    name: SequenceTaskName
    """The task: reverse, sort, sub (9 - x), swap (halves) or copy."""
    length: int
    """Tokens in one sequence."""
    vocabulary: int = 10
    """Distinct symbols, drawn uniformly."""
    train_examples: int = 50_000
    """Sequences in the training split."""
    validation_examples: int = 1_000
    """Sequences in the validation split."""
    test_examples: int = 10_000
    """Sequences in the test split."""
    data_seed: int = 42
    """Seed from which all three splits are drawn."""

    def __post_init__(self) -> None:
        check_word("sequence task", self.name, get_args(SequenceTaskName))
        check_sizes(self, "length", "train_examples", "validation_examples", "test_examples")
        if self.vocabulary < 2:
            raise ValueError(
                f"task {self.name}: vocabulary must be at least 2, got {self.vocabulary}"
            )

    @property
    def sequence_length(self) -> int:
        """Tokens in one sequence, for the costs."""
        return self.length

    @property
    def data_fingerprint(self) -> str:
        """sha256 of the settings that determine the sequences, without the task."""
        return digest(
            "sequences",
            SEQUENCE_DATA_VERSION,
            self.length,
            self.vocabulary,
            self.train_examples,
            self.validation_examples,
            self.test_examples,
            self.data_seed,
        )


@stored("RecallTaskConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class RecallTaskConfig(DrawnExamples):
    """Multi-query associative recall: answer each key with the value that stood behind it.

    Source: Arora et al. 2023 (Zoology), section 4, and its code.
    """

    name: Literal["recall"] = "recall"
    """Constant; it identifies the task in a record."""
    length: int
    """Tokens in one sequence: pairs, and behind them queries among zeros."""
    pairs: int
    """Key-value pairs in one sequence, each of which is queried once."""
    vocabulary: int = 8_192
    """Distinct tokens: zero, and one half keys, the other half values."""
    power: float = 0.01
    """Exponent of the distances of queries, small ones being likelier; 1 for uniform distances."""
    train_examples: int = 100_000
    """Sequences in the training split."""
    validation_examples: int = 1_000
    """Sequences in the validation split."""
    test_examples: int = 3_000
    """Sequences in the test split."""
    data_seed: int = 42
    """Seed from which all three splits are drawn."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_recall(
            length=self.length,
            pairs=self.pairs,
            vocabulary=self.vocabulary,
            power=self.power,
            counts={
                "train_examples": self.train_examples,
                "validation_examples": self.validation_examples,
                "test_examples": self.test_examples,
            },
        )

    @property
    def sequence_length(self) -> int:
        """Tokens in one sequence, for the costs."""
        return self.length

    @property
    def data_fingerprint(self) -> str:
        """sha256 of the settings that determine the sequences."""
        return digest(
            "recall",
            RECALL_DATA_VERSION,
            self.length,
            self.pairs,
            self.vocabulary,
            self.power,
            self.train_examples,
            self.validation_examples,
            self.test_examples,
            self.data_seed,
        )


@stored("CharacterTaskConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class CharacterTaskConfig(NextToken):
    """Predict the next character of a text.

    Source: Borji 2023, section 3.5 (tiny Shakespeare).
    """

    name: Literal["characters"] = "characters"
    """Constant; it identifies the task in a record."""
    context: int
    """Characters per window."""
    evaluation: Evaluation = "exact"
    """Validation: ``exact`` scores every held-out character once, ``sampled`` random windows. The
    test is always exact."""
    evaluation_batches: int = 200
    """Number of batches if the evaluation is ``sampled``."""
    evaluation_batch_size: int = 64
    """Windows per batch; affects the result only if the evaluation is ``sampled``."""
    scored_characters: int | None = None
    """Number of held-out characters to score, from the first; None for all."""
    train_fraction: float = 0.9
    """Fraction of the text for training; the rest is for validation."""
    text_sha256: str = TINY_SHAKESPEARE_SHA256
    """sha256 of the text."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_sizes(
            self, "context", "evaluation_batches", "evaluation_batch_size", "scored_characters"
        )
        if not 0.0 < self.train_fraction < 1.0:
            raise ValueError(
                f"task characters: train_fraction must be between 0 and 1, "
                f"got {self.train_fraction}"
            )

    @property
    def has_test(self) -> bool:
        """False: the last part of the text is scored as validation and as test."""
        return False

    @property
    def data_fingerprint(self) -> str:
        """sha256 of the text and its split."""
        return digest("characters", self.text_sha256, self.train_fraction)


@stored("LanguageTaskConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageTaskConfig(NextToken, HashedData):
    """Predict the next token of a prepared set of documents.

    Source: the language models of papers 1 and 3.
    """

    name: Literal["language"] = "language"
    """Constant; it identifies the task in a record."""
    data: str = field(metadata=NOT_IDENTIFYING)
    """Folder or name of the prepared data set; not part of a run's identity."""
    data_sha256: str
    """Fingerprint of the data set."""
    has_test: bool = field(default=True, metadata={**NOT_IDENTIFYING, **ADDED_LATER})
    """Whether the set has a test split; without one the validation split is scored at the end."""
    context: int
    """Tokens per row."""
    protocol: Protocol = "packed"
    """``packed`` cuts the concatenated documents into windows without padding; ``padded-paper`` has
    the first tokens of one document per row and counts padding in the loss, as in paper 1."""
    document_mask: bool = False
    """Whether tokens attend to their own document only (``packed``)."""
    validation_tokens: int | None = None
    """Number of validation tokens to score, from the first; None for all."""
    test_tokens: int | None = None
    """Number of test tokens to score, from the first; None for all."""
    evaluation_batch_size: int = 16
    """Rows per batch in evaluations."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_sizes(self, "context", "evaluation_batch_size", "validation_tokens", "test_tokens")
        if self.document_mask and self.protocol != "packed":
            raise ValueError(
                f"expected the protocol packed with a document mask, got {self.protocol}, which "
                "has one document per row"
            )


@stored("NumberTaskConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class NumberTaskConfig(NextToken):
    """Predict the next word of the spelled numbers from 1 to 9,999.

    Source: Borji 2023, section 3.3 (number generation), and its code.
    """

    name: Literal["numbers"] = "numbers"
    """Constant; it identifies the task in a record."""
    context: int
    """Words per window."""
    protocol: NumberProtocol = "as-published"
    """``as-published`` leaves out 8000, trains on the first 80 % of the windows and scores the
    others as validation and as test; ``clean`` has all numbers, and splits windows of all sizes of
    numbers 80/10/10."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_sizes(self, "context")

    @property
    def has_test(self) -> bool:
        """Whether the test windows are apart from those of validation."""
        return self.protocol == "clean"

    @property
    def data_fingerprint(self) -> str:
        """sha256 of the settings that determine the windows."""
        return digest("numbers", NUMBER_DATA_VERSION, self.protocol, self.context)


@stored("TextTaskConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class TextTaskConfig(Accuracy, HashedData):
    """Predict the label of a text from some of its bytes."""

    name: Literal["texts"] = "texts"
    """Constant; it identifies the task in a record."""
    data: str = field(default="english-novels", metadata=NOT_IDENTIFYING)
    """A folder with a folder of ``.txt`` files for each label, or ``english-novels`` for novels and
    their authors; not part of a run's identity."""
    labels: tuple[str, ...] | None = None
    """The labels to tell apart; None for all."""
    data_sha256: str
    """Fingerprint of the texts with these labels."""
    context: int
    """Bytes per window; a shorter text is padded."""
    windows_per_label: int = 100
    """Windows that are scored of each label, spread over its texts of a split; fewer of all labels
    where a label has fewer."""
    evaluation_batch_size: int = 100
    """Windows per forward pass of an evaluation."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_sizes(self, "context", "windows_per_label", "evaluation_batch_size")

    @property
    def sequence_length(self) -> int:
        """Tokens in one sequence, for the costs."""
        return self.context


@stored("ImageTaskConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTaskConfig(Accuracy):
    """Predict the class of an image.

    Source: Borji 2023, section 3.2, and its public code; Kayyam et al. 2026, section 3.2.
    """

    name: str
    """The data set; any name for images of one's own."""
    splits: ImageSplits = "clean"
    """``clean`` holds ``validation_images`` out of the training images. ``as-published`` does what
    the code of paper 2 does: MNIST and FashionMNIST validate on the test images, and CIFAR draws
    training and validation images apart from each other, so that nine of ten validation images are
    trained on. Tiny ImageNet, of which there is no code, is validated on what is tested."""
    validation_images: int = 5_000
    """Validation images; where validation is on the test images, all of those instead."""
    augment: bool = False
    """Whether to flip and crop training images at random."""
    resize_to: int | None = field(default=None, metadata=ADDED_LATER)
    """Rows and columns to which images are resized when they are batched; None for their own."""
    evaluation_batch_size: int = 500
    """Images per forward pass of an evaluation."""
    own: OwnImages | None = field(default=None, metadata=ADDED_LATER)
    """Images of one's own, as ``data.own_images.describe_images`` returns them."""

    def __post_init__(self) -> None:
        if self.own is None and self.name not in IMAGE_SETS:
            raise ValueError(
                f"expected an image data set, got {self.name!r}; choices: {', '.join(IMAGE_SETS)}; "
                "images of your own need own=describe_images(FOLDER) of qkvary.data.own_images"
            )
        if self.own is not None and (self.name in IMAGE_SETS or self.splits != "clean"):
            raise ValueError(
                "expected a new name and clean splits for images of your own, got "
                f"{self.name!r} and {self.splits}"
            )
        check_word("splits", self.splits, get_args(ImageSplits))
        check_sizes(self, "validation_images", "evaluation_batch_size", "resize_to")
        if self.validation_images >= self.images.train_images:
            raise ValueError(
                f"task {self.name}: expected fewer validation_images than the "
                f"{self.images.train_images:,} images, got {self.validation_images:,}"
            )

    @property
    def images(self) -> ImageSet:
        """The data set."""
        return IMAGE_SETS[self.name] if self.own is None else self.own.as_set(self.name)

    @property
    def image_size(self) -> int:
        """Rows and columns of an image when the network reads it."""
        return self.images.pixels.size if self.resize_to is None else self.resize_to

    @property
    def data_fingerprint(self) -> str:
        """Fingerprint of the data set."""
        return self.images.fingerprint


@stored("TranslationTaskConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationTaskConfig(HashedData):
    """Translate sentences.

    Source: Borji 2023, section 3.6 (Multi30k), and its code.
    """

    higher_is_better: ClassVar[bool] = True
    has_test: ClassVar[bool] = True
    name: Literal["translation"] = "translation"
    """Constant; it identifies the task in a record."""
    source: str
    """The language of the source; of Multi30k ``de`` or ``en``."""
    target: str
    """The language of the translation."""
    protocol: TranslationProtocol = "clean"
    """``clean`` has the loss per word and sacreBLEU for a metric. ``as-published`` divides the loss
    by all rows of a batch, padding included, and has the BLEU of words between kept marks of
    beginning and end."""
    min_count: int = 1
    """Occurrences in the training split from which a word has a token."""
    label_smoothing: float = 0.1
    """Probability of the targets that is spread over other words."""
    max_tokens: int = 100
    """Longest source with its two marks, and longest translation with the mark at its end."""
    evaluation_batch_size: int = 50
    """Sentences per batch in evaluations."""
    data: str = field(default="multi30k", metadata=NOT_IDENTIFYING)
    """``multi30k``, a folder with files of the same names, or the common path of two files, such as
    ``mine`` for ``mine.fr`` and ``mine.en``; not part of a run's identity."""
    data_sha256: str = MULTI30K_SHA256
    """Fingerprint of the files."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_sizes(self, "min_count", "max_tokens", "evaluation_batch_size")
        if self.source == self.target:
            raise ValueError(
                f"task translation: expected two languages, got {self.source} for both"
            )
        if self.data == "multi30k":
            check_word("language of Multi30k", self.source, ("de", "en"))
            check_word("language of Multi30k", self.target, ("de", "en"))
        if not 0.0 <= self.label_smoothing < 1.0:
            raise ValueError(
                f"task translation: label_smoothing must be in [0, 1), got {self.label_smoothing}"
            )

    @property
    def sequence_length(self) -> int:
        """Tokens in one sequence, for the costs: those of an average sentence of Multi30k."""
        return min(MULTI30K_TOKENS, self.max_tokens)

    @property
    def languages(self) -> tuple[str, str]:
        """Both languages, in one order."""
        return (min(self.source, self.target), max(self.source, self.target))

    @property
    def metric(self) -> str:
        """The headline metric."""
        return "bleu" if self.protocol == "clean" else "published_bleu"


@stored("AnomalyTaskConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class AnomalyTaskConfig(Accuracy):
    """Find the one image of a set that shows another class than the others.

    Source: Borji 2023, section 3.2; Kayyam et al. 2026, section A.3.
    """

    name: Literal["anomaly"] = "anomaly"
    """Constant; it identifies the task in a record."""
    features: FeatureSetName
    """The images, and the network that describes them."""
    order: AnomalyOrder = "shuffled"
    """Place of the anomaly: ``shuffled``, or always ``last`` as published, which networks that know
    positions can learn instead of the task."""
    set_size: int = 10
    """Images in a set."""
    data_seed: int = 42
    """Seed from which the sets of validation and test are drawn."""
    evaluation_batch_size: int = 500
    """Sets per forward pass of an evaluation."""
    features_sha256: str | None = field(default=None, metadata=ADDED_LATER)
    """sha256 of the file of features, for those that are made on the machine; a study takes that of
    the file that is there when it is loaded."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_sizes(self, "evaluation_batch_size")
        if self.features_sha256 is not None and not FEATURE_SETS[self.features].is_made_here:
            raise ValueError(
                f"task anomaly: expected no features_sha256 with {self.features}, whose numbers "
                f"are fixed, got {self.features_sha256}"
            )
        if self.set_size < 3:
            raise ValueError(f"task anomaly: set_size must be at least 3, got {self.set_size}")

    @property
    def width(self) -> int:
        """Numbers that describe an image."""
        return FEATURE_SETS[self.features].width

    @property
    def sequence_length(self) -> int:
        """Images in a set, for the costs."""
        return self.set_size

    @property
    def data_fingerprint(self) -> str:
        """sha256 of the features and the settings that determine the sets."""
        return digest(
            "anomaly",
            ANOMALY_DATA_VERSION,
            FEATURE_SETS[self.features].fingerprint,
            self.order,
            self.set_size,
            self.data_seed,
            *filter(None, [self.features_sha256]),
        )


TaskConfig = (
    SequenceTaskConfig
    | RecallTaskConfig
    | CharacterTaskConfig
    | LanguageTaskConfig
    | NumberTaskConfig
    | TextTaskConfig
    | ImageTaskConfig
    | TranslationTaskConfig
    | AnomalyTaskConfig
)
"""Every task that ships with qkvary."""
