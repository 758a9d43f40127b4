"""Texts that the networks of a training write, for its report."""

from contextlib import suppress

from qkvary.storage.errors import DamagedError
from qkvary.studies.running.store import Store
from qkvary.studies.study import Study

TEXT_TOKENS = 256
TRIES = 8


def write_texts(study: Study, store: Store) -> dict[str, str]:
    """Return a new document by each variant's first finished network, by the variants' labels."""
    from qkvary.checkpoints.catalog import load_checkpoint
    from qkvary.inference.samples import TextSampler

    texts: dict[str, str] = {}
    for cell in study.cells():
        path = None if cell.variant in texts else store.network(cell.run_key)
        if path is None:
            continue
        with suppress(DamagedError):
            network, tokenizer = load_checkpoint(path)
            if tokenizer is not None and tokenizer.separator is not None:
                samples = (
                    TextSampler(tokenizer, tokens=TEXT_TOKENS, seed=seed)(network)
                    for seed in range(TRIES)
                )
                # A document may end before it begins.
                texts[cell.variant] = next((text for text in samples if text.strip()), "")
    return texts
