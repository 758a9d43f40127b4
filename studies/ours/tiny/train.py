"""Trains the small language models that come with the package, and writes their folders.

    python studies/ours/tiny/train.py tinystories_sample.txt

Runs that are finished are not trained again.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import tokenizers
from tokenizers import Regex, models, pre_tokenizers, trainers

from qkvary.arch.attention import Initialization
from qkvary.arch.named_networks import modern_network
from qkvary.arch.networks import LanguageModelConfig
from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.checkpoints.models import save_model
from qkvary.costs.cache import cache_bytes_per_token
from qkvary.costs.parameters import network_parameters
from qkvary.data.checkpoint_names import PACKAGED
from qkvary.data.preparation import prepare
from qkvary.data.prepared import PreparedData
from qkvary.data.sources import SourceOptions, find_source
from qkvary.data.tokenizers import PieceTokenizer
from qkvary.inference.decoding import complete
from qkvary.inference.evaluation.perplexity import Protocol, TextScore, score_text
from qkvary.inference.evaluation.texts import open_split
from qkvary.inference.requests import Request, Sampling
from qkvary.storage.durable import atomic_write_file
from qkvary.storage.errors import UsageError
from qkvary.studies.records import Record
from qkvary.studies.running.executors.local import LocalExecutor
from qkvary.studies.running.runner import StudyRunner
from qkvary.studies.running.store import Store
from qkvary.studies.study import Cell, Setting, Study
from qkvary.tasks.config import LanguageTaskConfig
from qkvary.text.progress_line import say
from qkvary.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig

TEXT_SHA256 = "5352b299dcb1a32898b2d779b145b5a05f3e1265953fd21c264c9f9f9c9ae33d"
"""The first 2 MiB of the training text of TinyStories."""
NAMES = {"QKV@rotary": "tiny", "Q-K=V@rotary": "tiny-k"}
"""The models by their variants."""
PIECES = 1_024
CONTEXT = 256
STEPS, ROWS = 5_000, 4
SEED = 0
PROMPT, SAMPLE_TOKENS, TEMPERATURE = "Once upon a time", 80, 0.5
WORDS = r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]|\s"
"""Pieces do not cross these: a word or a sign with the space before it, or a white space."""
ALPHABET = "\n !\"',-.01236:;?ABCDEFGHIJKLMNOPQRSTUVWYZabcdefghijklmnopqrstuvwxyz«»ñ–—‘’“”"
"""Characters with a piece of their own. They are listed because a trainer that chooses them draws
lots among characters that are equally rare."""
BYTE_PIECES = [b"<0x%02X>" % byte for byte in range(256)]
CONTROL_PIECES = [b"<unk>", b"<s>", b"</s>"]


def learn_tokenizer(texts: Sequence[str], pieces: int = PIECES) -> PieceTokenizer:
    """Learns byte pair encoding from texts, in a form that needs no library to apply.

    Args:
        texts: The training documents.
        pieces: Vocabulary, control tokens and single bytes included.
    """
    room = pieces - len(CONTROL_PIECES) - len(BYTE_PIECES)
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.Split(Regex(WORDS), "isolated")
    trainer = trainers.BpeTrainer(
        vocab_size=room,
        initial_alphabet=list(ALPHABET),
        limit_alphabet=len(ALPHABET),
        show_progress=False,
    )
    library.train_from_iterator([" " + text for text in texts], trainer)
    # Numbered in the order of their merges, so the earliest has the highest score.
    learnt = sorted(library.get_vocab().items(), key=lambda entry: entry[1])
    known = [*CONTROL_PIECES, *BYTE_PIECES]
    scores = [0.0] * len(known) + [-float(rank) for rank in range(len(learnt))]
    return PieceTokenizer([*known, *(piece.encode() for piece, _ in learnt)], scores)


def prepare_text(text: Path, folder: Path) -> PreparedData:
    """Holds a twentieth of the documents out, learns the tokenizer from the rest, encodes both."""
    source = find_source(str(text), SourceOptions(name="tinystories", held_out=0.05)).read()
    documents = [document.text for document in source.documents()]
    digests = (hashlib.sha256(one.strip().encode()).digest()[:8] for one in documents)
    splits = [source.split_of(int.from_bytes(digest, "big")) for digest in digests]
    training = [one for one, split in zip(documents, splits, strict=True) if split == "train"]
    return prepare(source, learn_tokenizer(training), folder, tokenizer_name=f"bpe-{PIECES}")


def make_network() -> LanguageModelConfig:
    """Returns the network of the first model; the others share its projections.

    Its initial weights are three times as large as usual, as in the studies of small networks
    (docs/decisions/0017).
    """
    network = modern_network(
        d_model=96, num_heads=3, num_layers=3, max_tokens=CONTEXT, vocabulary=PIECES
    )
    init = Initialization(scheme="normal", std=0.06, output_std=0.025)
    return replace(
        network,
        attention=replace(network.layers[0], init=init),
        block=replace(network.block, dropout=0.1),
        embedding_dropout=0.1,
        init=init,
    )


def make_study(data: PreparedData) -> Study:
    """Returns the study that trains the models."""
    training = TrainingConfig(
        steps=STEPS,
        batch_size=ROWS,
        optimizer=OptimizerConfig(
            name="adamw",
            learning_rate=5e-3,
            betas=(0.9, 0.95),
            weight_decay=0.1,
            decay="matrices",
            gradient_clip=1.0,
        ),
        schedule=ScheduleConfig(name="cosine", warmup_steps=200, floor=0.02),
        evaluate_every=250,
    )
    task = LanguageTaskConfig(
        data=str(data.path.resolve()), data_sha256=data.fingerprint, context=CONTEXT
    )
    return Study(
        name="tiny",
        question="Which small models can be tried at once?",
        description="The language models that come with the package, on short stories.",
        settings=(
            Setting(
                name="stories",
                task=task,
                network=make_network(),
                training=training,
                keep_networks=True,
            ),
        ),
        variants=tuple(NAMES),
        baseline=next(iter(NAMES)),
        seeds=(SEED,),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A stored model and what its card says."""

    name: str
    variant: str
    cell: Cell
    record: Record
    score: TextScore
    sample: str


def store_model(store: Store, cell: Cell, data: PreparedData, folder: Path) -> Made:
    """Rounds a trained network to bfloat16, writes its folder, and measures what was written."""
    trained, record = store.network(cell.run_key), store.record(cell.run_key)
    if trained is None or record is None:
        raise UsageError(f"expected the network of {cell.title} in {store.path}, got none")
    name = NAMES[cell.variant]
    rounded = load_checkpoint(trained).to("cpu", "bfloat16")
    save_model(folder / name, rounded.network, data.tokenizer)
    network, tokenizer = load_checkpoint(folder / name)
    _, text = open_split(data.path, "validation")
    prompt = tuple(data.tokenizer.encode(PROMPT))
    request = Request(
        prompt=prompt,
        max_new_tokens=SAMPLE_TOKENS,
        sampling=Sampling(temperature=TEMPERATURE),
        stop_tokens=data.tokenizer.ends,
        seed=SEED,
    )
    (answer,) = complete(network, [request], tokenizer=tokenizer)
    return Made(
        name=name,
        variant=cell.variant,
        cell=cell,
        record=record,
        score=score_text(network, text, Protocol(context=CONTEXT, stride=CONTEXT)),
        sample=" ".join((PROMPT + answer.text).split()),
    )


def describe_models(models: Sequence[Made]) -> str:
    """Returns the card of the models."""
    first, last = models[0], models[-1]
    run, machine = first.cell.run, first.record.environment
    network, score = run.network, first.score
    kept = [cache_bytes_per_token(one.cell.run.network, "bfloat16") for one in models]
    rows = [
        ("variant", [one.variant for one in models]),
        ("parameters", [f"{network_parameters(one.cell.run.network).total:,}" for one in models]),
        ("cache, bytes a token (bfloat16)", [f"{size:,}" for size in kept]),
        ("loss, nats a token", [f"{one.score.loss:.3f}" for one in models]),
        ("bits a byte", [f"{one.score.bits_per_byte:.3f}" for one in models]),
        ("perplexity a token", [f"{one.score.perplexity:.2f}" for one in models]),
    ]
    table = "\n".join(f"| {name} | {' | '.join(values)} |" for name, values in rows)
    samples = "\n\n".join(f"`{one.name}`: {one.sample}" for one in models)
    tokens = STEPS * ROWS * CONTEXT
    card = (Path(__file__).parent / "card.template").read_text("utf-8")
    return card.format(
        names=" and ".join(f"`{one.name}`" for one in models),
        header=" | ".join(f"`{one.name}`" for one in models),
        table=table,
        samples=samples,
        difference=f"{last.score.loss - first.score.loss:+.3f}",
        documents=score.documents,
        tokens=f"{score.tokens:,}",
        bytes=f"{score.text_bytes:,}",
        layers=network.num_layers,
        width=network.d_model,
        heads=network.layers[0].num_heads,
        d_ff=network.block.d_ff,
        steps=f"{STEPS:,}",
        rows=ROWS,
        context=CONTEXT,
        trained=f"{tokens:,}",
        pieces=f"{PIECES:,}",
        seed=SEED,
        torch=machine["torch"],
        processor=machine["cpu"],
        sha256=TEXT_SHA256,
        prompt=PROMPT,
        temperature=TEMPERATURE,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains what is missing and writes the folders of the models."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path, help="tinystories_sample.txt")
    parser.add_argument("--out", type=Path, default=Path("runs/tiny"), help="where runs are kept")
    parser.add_argument("--to", type=Path, default=PACKAGED, help="folder to write")
    given = parser.parse_args(arguments)
    if hashlib.sha256(given.text.read_bytes()).hexdigest() != TEXT_SHA256:
        parser.error(f"expected a text with the sha256 {TEXT_SHA256}, got {given.text}")
    data = prepare_text(given.text, given.out / "data")
    study = make_study(data)
    store = Store(given.out)
    runs = StudyRunner(study, store, executor=LocalExecutor(1), say=say).run()
    if runs.exit_code or runs.done != runs.planned:
        parser.error(f"expected {runs.planned} trained networks, got {runs.done}")
    models = [store_model(store, cell, data, given.to) for cell in study.cells()]
    atomic_write_file(given.to / "README.md", describe_models(models).encode())
    print(given.to / "README.md")


if __name__ == "__main__":
    main()
