"""Preparing documents compared with the tokenizer alone, and loading them with a training step.

Preparing reads files, finds documents, turns them into tokens, writes shards and checks them; the
tokenizer alone is called once for each document that is in memory already. Both in CPU seconds and
on the clock, with one worker. The text is the English novels where ``QKVARY_DATA`` has them, with
GPT-2's merges; else the text of the package, with merges that are counted in it.

Loading is a batch of the task, which is a function of the step: which rows, their tokens, tensors.
The step for comparison is the smallest that is trained here: d_model 256, 4 layers, 256 tokens,
batch 8, a vocabulary of 512, float32, one thread.
"""

import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.networks import BlockConfig, LanguageModelConfig
from qkvary.data.byte_pairs import BytePairTokenizer
from qkvary.data.preparation import prepare
from qkvary.data.prepared import PreparedData
from qkvary.data.sources import Source, find_source
from qkvary.data.tokenizer_files import load_gpt2
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.environment import data_root
from qkvary.tasks.config import LanguageTaskConfig
from qkvary.tasks.language import LanguageTask
from timing.interleaved import Effort, print_case, read_effort, take_turns

NAME = "data_preparation"
FULL = Effort(rounds=11, turn_seconds=0.0)
FULL_LOADING = Effort(rounds=11, turn_seconds=0.2)
QUICK = Effort(rounds=1, turn_seconds=0.0)
LEAST_OF_TOKENIZER = 0.9
MOST_OF_STEP = 0.01
COUNTED_VOCABULARY = 5000
D_MODEL, HEADS, LAYERS, D_FF, VOCABULARY = 256, 4, 4, 1024, 512
CONTEXT, BATCH, QUICK_BATCH = 256, 8, 1
SHORT_CHARACTERS = 4000
"""About what a page of the web has."""
STEPS = 1000
"""Different batches that are loaded, one after the other."""


def count_merges(source: Source) -> BytePairTokenizer:
    """A tokenizer of the text itself."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=COUNTED_VOCABULARY, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator((document.text for document in source.documents()), trainer)
    with tempfile.TemporaryDirectory() as folder:
        _, merges = made.model.save(folder)
        return BytePairTokenizer(Path(merges).read_text("utf-8"))


def compare_preparing(
    name: str, tokenizer: BytePairTokenizer, folder: Path, effort: Effort, case: str
) -> PreparedData:
    """Print what preparing takes over what the tokenizer alone takes."""
    texts = [document.text for document in find_source(name).read().documents()]
    encoding = tokenizer.encoding
    out = folder / "set"
    size = sum(len(text.encode()) for text in texts)

    def alone() -> None:
        for text in texts:
            encoding.encode_to_numpy(text, disallowed_special=())

    def prepared() -> PreparedData:
        shutil.rmtree(out, ignore_errors=True)
        return prepare(find_source(name).read(), tokenizer, out, tokenizer_name="own", workers=1)

    calls: dict[str, Callable[[], object]] = {"tokenizer": alone, "preparing": prepared}
    for clock, what in ((time.process_time, "CPU seconds"), (time.perf_counter, "on the clock")):
        timing = take_turns(calls, effort, clock=clock)
        print_case(
            NAME,
            f"speed of preparing over that of the tokenizer, {what}: {case}, one worker",
            timing.ratio("tokenizer", "preparing"),
            goal=LEAST_OF_TOKENIZER,
            better="higher",
            timing=timing,
            text_bytes=size,
        )
    return prepared()


def write_lines(name: str, path: Path) -> None:
    """The text of a corpus as many short documents, one a line."""
    text = "".join(document.text for document in find_source(name).read().documents())
    starts = range(0, len(text), SHORT_CHARACTERS)
    lines = [json.dumps({"text": text[start : start + SHORT_CHARACTERS]}) for start in starts]
    path.write_text("\n".join(lines), "utf-8")


def compare_loading(data: PreparedData, effort: Effort, batch_size: int) -> None:
    """Print what loading a batch takes of a step."""
    task = LanguageTask(
        LanguageTaskConfig(data=str(data.path), data_sha256=data.fingerprint, context=CONTEXT)
    )
    config = LanguageModelConfig(
        attention=AttentionConfig(d_model=D_MODEL, num_heads=HEADS, causal=True),
        block=BlockConfig(d_ff=D_FF),
        num_layers=LAYERS,
        vocabulary=VOCABULARY,
        max_tokens=CONTEXT,
    )
    model = LanguageModel(config, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(VOCABULARY, (batch_size, CONTEXT + 1))
    batch = task.batch(0, batch_size, 0)._replace(inputs=tokens[:, :-1], targets=tokens[:, 1:])
    steps = iter(range(2**40))

    def step() -> None:
        task.loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def load() -> None:
        task.batch(next(steps) % STEPS, batch_size, 0)

    timing = take_turns({"loading": load, "step": step}, effort)
    print_case(
        NAME,
        f"loading over a step of training: context {CONTEXT}, batch {batch_size}",
        timing.ratio("loading", "step"),
        goal=MOST_OF_STEP,
        better="lower",
        timing=timing,
    )


def main() -> None:
    """Measure both; in a quick round with the text of the package."""
    effort = read_effort(full=FULL, quick=QUICK)
    is_quick = effort == QUICK
    torch.set_num_threads(1)
    torch.manual_seed(0)
    root = data_root()
    if not is_quick and root is not None and (root / "english_novels").is_dir():
        name, tokenizer = "english-novels", load_gpt2()
        case = "English novels, GPT-2's merges"
    else:
        name = "tiny-shakespeare"
        tokenizer = count_merges(find_source(name).read())
        case = "Shakespeare, merges counted in it"
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / "lines.jsonl"
        write_lines(name, lines)
        short = f"{case}, JSON lines of {SHORT_CHARACTERS:,} characters"
        compare_preparing(str(lines), tokenizer, Path(folder), effort, short)
        data = compare_preparing(name, tokenizer, Path(folder), effort, case)
        compare_loading(
            data, QUICK if is_quick else FULL_LOADING, QUICK_BATCH if is_quick else BATCH
        )


if __name__ == "__main__":
    main()
