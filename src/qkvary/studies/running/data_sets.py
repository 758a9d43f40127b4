"""Prepares the data sets of runs before the first run starts. Torch-free."""

from collections.abc import Callable, Iterable
from pathlib import Path

from qkvary.data.corpora import CORPORA, Corpus, canonical_reference, find_local
from qkvary.data.feature_sets import FEATURE_SETS
from qkvary.data.image_features import load_features
from qkvary.data.images import check_images, find_images
from qkvary.data.labelled_texts import check_labelled_texts
from qkvary.data.own_images import load_own_images
from qkvary.data.prepared import read_fingerprint
from qkvary.data.prepared_sets import ensure_prepared, find_prepared
from qkvary.data.translations import load_translations
from qkvary.storage.errors import UsageError
from qkvary.studies.study import Cell
from qkvary.tasks.config import (
    AnomalyTaskConfig,
    ImageTaskConfig,
    LanguageTaskConfig,
    TextTaskConfig,
    TranslationTaskConfig,
)


def prepare_sets(cells: Iterable[Cell], report: Callable[[str], None]) -> None:
    """Prepare the data sets that runs need and that are not prepared yet; check the others.

    Args:
        cells: The runs.
        report: Called with a message for each set.

    Raises:
        UsageError: if a set is not the expected one, or cannot be prepared.
        DamagedError: if a file of images or features is damaged or not the published one.
        DownloadError: if images cannot be downloaded.
        QkvaryError: as ``ensure_prepared``, ``load_translations`` and ``check_labelled_texts``.
    """
    tasks = [cell.run.task for cell in cells]
    for data, languages in {
        (task.data, task.languages) for task in tasks if isinstance(task, TranslationTaskConfig)
    }:
        load_translations(data, languages)
    for texts in {task for task in tasks if isinstance(task, TextTaskConfig)}:
        check_labelled_texts(texts.data, texts.labels, texts.data_sha256)
    named = {
        (task.data, task.data_sha256): None
        for task in tasks
        if isinstance(task, LanguageTaskConfig)
    }
    for images in {
        (task.name, task.own): None for task in tasks if isinstance(task, ImageTaskConfig)
    }:
        name, own = images
        if own is None:
            check_images(name)
        else:
            load_own_images(own)
    for sets in {task for task in tasks if isinstance(task, AnomalyTaskConfig)}:
        load_features(sets.features, sets.features_sha256)
        # Samples show them, where they are on this machine.
        if shown := FEATURE_SETS[sets.features].images:
            find_images(shown)
    for reference, sha256 in named:
        corpus = _corpus_of(reference)
        try:
            folder = find_prepared(reference)
        except UsageError:
            if corpus is not None and find_local(corpus) is None:
                raise UsageError(
                    f"expected the data set {sha256[:12]} of {reference}, got neither it nor its "
                    f"text: put the text at {corpus.local} below QKVARY_DATA"
                ) from None
            report(f"preparing {reference}")
            folder = ensure_prepared(reference)
        _check_set(reference, sha256, folder, corpus)


def _corpus_of(reference: str) -> Corpus | None:
    """Return the corpus of a pinned set, if its text is local.

    The text on the hub may be longer, which gives another set.
    """
    corpus = CORPORA.get(canonical_reference(reference).partition("/")[0])
    is_path = Path(reference).expanduser().exists()
    return None if corpus is None or corpus.local is None or is_path else corpus


def _check_set(reference: str, sha256: str, folder: Path, corpus: Corpus | None) -> None:
    found = read_fingerprint(folder)
    if found == sha256:
        return
    remedy = (
        "prepare the expected one there"
        if corpus is None
        else "remove that folder, and put the text of the expected one at "
        f"{corpus.local} below QKVARY_DATA"
    )
    raise UsageError(
        f"expected the data set {sha256[:12]} of {reference}, got {found[:12]} in {folder}: "
        f"{remedy}"
    )
