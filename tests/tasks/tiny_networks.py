"""Networks and configs small enough that a test trains them in a second."""

import functools
import gzip
import itertools
import pkgutil
import tempfile
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import qkvary.tasks
from qkvary.arch.attention import AttentionConfig
from qkvary.arch.networks import (
    BlockConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    LanguageModelConfig,
    Network,
    VisionTransformerConfig,
)
from qkvary.data.image_sets import IMAGE_SETS
from qkvary.data.labelled_texts import load_labelled_texts
from qkvary.data.preparation import prepare
from qkvary.data.prepared import PreparedData
from qkvary.data.sources import find_source
from qkvary.data.tokenizers import CharacterTokenizer
from qkvary.data.translations import load_translations
from qkvary.tasks.config import (
    CharacterTaskConfig,
    LanguageTaskConfig,
    NumberTaskConfig,
    RecallTaskConfig,
    SequenceTaskConfig,
    SequenceTaskName,
    TaskConfig,
    TextTaskConfig,
    TranslationTaskConfig,
)
from qkvary.tasks.image_config import AnomalyTaskConfig, ImageTaskConfig
from tests.data.small_images import describe_small, small_contents, write_files

VOCABULARIES = {"characters": 65, "language": 29, "numbers": 30, "recall": 11}
EXAMPLES: dict[str, Any] = {"train_examples": 53, "validation_examples": 17, "test_examples": 19}
ALPHABET = "abcdefghijklmnopqrstuvwxyz"
SAYINGS = (
    "thequickbrownfoxjumpsoverthelazydog",
    "sphinx",
    "packmyboxwithfivedozenliquorjugs",
    "",
    "waltz",
    "vow",
    "bad",
)
VALIDATION = ("jackdawslovemybigsphinx", "of", "quartz", "a", "bbbbbbbbbbbbbbbb")


def write_texts(folder: Path) -> Path:
    """Documents in files of their own, split."""
    for split, texts in (
        ("train", SAYINGS * 2),
        ("validation", VALIDATION),
        ("test", SAYINGS[::-1]),
    ):
        (folder / split).mkdir(parents=True)
        for number, text in enumerate(texts):
            (folder / split / f"{number:02d}.txt").write_text(text)
    return folder


_ROOMS: list[tempfile.TemporaryDirectory[str]] = []


def make_room() -> Path:
    """Return an empty folder, which goes when the process ends."""
    _ROOMS.append(tempfile.TemporaryDirectory(prefix="qkvary-tests-"))
    return Path(_ROOMS[-1].name)


@functools.cache
def tiny_set() -> PreparedData:
    """A prepared set of a few words."""
    folder = make_room()
    source = find_source(str(write_texts(folder / "texts"))).read()
    tokenizer = CharacterTokenizer(ALPHABET, has_separator=True)
    return prepare(source, tokenizer, folder / "set", tokenizer_name="characters")


@functools.cache
def tiny_images() -> str:
    """The name of a data set of small random images of 11 classes."""
    contents = small_contents("mnist", train=53, test=19, classes=11)
    folder = write_files(make_room(), contents)
    IMAGE_SETS["images"] = describe_small(
        "mnist", contents, train=53, test=19, name="images", folder=str(folder), classes=11
    )
    return "images"


@functools.cache
def tiny_corpus() -> Path:
    """Sentences of five words and their translations of six, each word by one of its own."""
    folder = make_room()
    orders = list(itertools.permutations(range(7), 5))
    for start, (stem, count) in enumerate((("train", 11), ("val", 7), ("test_2016_flickr", 9))):
        lines = orders[start::83][:count]
        for language, names, end in (("en", "abcdefg", ""), ("de", "ABCDEFG", "!")):
            text = "\n".join(" ".join(names[word] for word in line) + end for line in lines)
            (folder / f"{stem}.{language}.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    return folder


@functools.cache
def tiny_labels() -> str:
    """A folder of texts with 11 labels, each with two letters of its own."""
    room = make_room()
    for label in range(11):
        folder = room / f"label-{label:02d}"
        folder.mkdir()
        for number in range(3 + label % 2):
            letters = ALPHABET[2 * label : 2 * label + 2] * (number + 5) + ALPHABET[number]
            (folder / f"{number}.txt").write_text(letters)
    return str(room)


def of_its_test(name: str) -> ModuleType | None:
    """The test of a task, where it makes a tiny task and perhaps a network for it."""
    path = Path(__file__).with_name(f"test_{name}.py")
    module = import_module(f"tests.tasks.test_{name}") if path.exists() else None
    return module if hasattr(module, "make_tiny_task") else None


def task_names() -> tuple[str, ...]:
    """The names of all tasks: the modules with a ``load``, which may have several."""
    names = {module.name for module in pkgutil.iter_modules(qkvary.tasks.__path__)}
    found = {name for name in names if hasattr(import_module(f"qkvary.tasks.{name}"), "load")}
    return tuple(sorted(found - {"digit_sequences"} | {*get_args(SequenceTaskName)}))


def tiny_task(name: str, *, length: int = 7) -> TaskConfig:
    if (module := of_its_test(name)) is not None:
        return module.make_tiny_task(length)
    if name == "language":
        data = tiny_set()
        return LanguageTaskConfig(data=str(data.path), data_sha256=data.fingerprint, context=length)
    if name == "images":
        return ImageTaskConfig(
            name=tiny_images(),  # type: ignore[arg-type]
            validation_images=17,
            augment=True,
            evaluation_batch_size=5,
        )
    if name == "anomaly":
        return AnomalyTaskConfig(features="noise", set_size=length + 4)
    if name == "translation":
        data = str(tiny_corpus())
        return TranslationTaskConfig(
            source="en",
            target="de",
            label_smoothing=0.0,
            max_tokens=length,
            evaluation_batch_size=4,
            data=data,
            data_sha256=load_translations(data).fingerprint,
        )
    if name == "characters":
        return CharacterTaskConfig(context=length, evaluation="sampled", evaluation_batches=2)
    if name == "recall":
        return RecallTaskConfig(length=length, pairs=1, vocabulary=11, **EXAMPLES)
    if name == "texts":
        data = tiny_labels()
        return TextTaskConfig(
            data=data,
            data_sha256=load_labelled_texts(data).fingerprint,
            context=length,
            evaluation_batch_size=4,
        )
    if name == "numbers":
        return NumberTaskConfig(context=length, protocol="clean")
    return SequenceTaskConfig(
        name=name,  # type: ignore[arg-type]
        length=length,
        vocabulary=11,
        **EXAMPLES,
    )


def tiny_network(name: str, *, length: int = 7) -> Network:
    if (module := of_its_test(name)) is not None and hasattr(module, "make_tiny_network"):
        return module.make_tiny_network(length)
    is_causal = name in {*VOCABULARIES, "translation"}
    layer = AttentionConfig(d_model=24, num_heads=3, causal=is_causal)
    common: dict[str, Any] = {"attention": layer, "num_layers": 2, "block": BlockConfig(d_ff=29)}
    pre: dict[str, Any] = common | {"block": BlockConfig(d_ff=29, norm_placement="pre-only")}
    post: dict[str, Any] = common | {"block": BlockConfig(d_ff=29, norm_placement="post")}
    if name == "images":
        return VisionTransformerConfig(
            **pre, image_size=length - 1, patch_size=3, channels=1, classes=11, d_head=31
        )
    if name == "anomaly":
        return EncoderConfig(
            **post,
            vocabulary=64,
            classes=1,
            max_tokens=length + 4,
            positions="none",
            reads_vectors=True,
        )
    if name == "translation":
        sizes = {"vocabulary": 12, "source_vocabulary": 11, "max_tokens": length}
        return EncoderDecoderConfig(**common | sizes)
    if name in VOCABULARIES:
        return LanguageModelConfig(
            **common, vocabulary=VOCABULARIES[name], max_tokens=length, tied_head=False
        )
    return EncoderConfig(
        **post,
        vocabulary=257 if name == "texts" else 11,
        classes=11,
        max_tokens=length,
        pooling="mean" if name == "texts" else "none",
    )
