"""lm-eval asks our networks its own prompts, on local files and on tasks made for a test."""

import dataclasses
import json
import math
import statistics
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest
import torch
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml

from qkvary.checkpoints.models import LoadedModel
from qkvary.data.tokenizers import ByteTokenizer, CharacterTokenizer
from qkvary.inference.evaluation import task_measurement
from qkvary.inference.evaluation.local_tasks import FIVE, LOCAL_TASKS, expand_tasks
from qkvary.inference.evaluation.network_lm import NetworkLM, _sampling, be_quiet
from qkvary.inference.evaluation.task_measurement import (
    PreparedTasks,
    measure_tasks,
    prepare_tasks,
    question_text,
)
from qkvary.inference.evaluation.task_scores import TaskScore
from qkvary.inference.requests import Sampling
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.errors import DamagedError, UsageError
from tests.contracts.variant_cases import randomize
from tests.inference.evaluation.networks import byte_network
from tests.inference.evaluation.task_files import (
    ARC,
    FILES,
    HELLASWAG,
    ROWS,
    TASKS,
    write_rows,
    write_stock_tasks,
    write_task_files,
)

CONTEXT = 160


@pytest.fixture(autouse=True)
def nothing_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a test opened a connection")

    monkeypatch.setattr("socket.socket.connect", refuse)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_task_files(tmp_path_factory.mktemp("tasks"))


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    network = byte_network("Q-K=V@rotary", max_tokens=CONTEXT)
    randomize(network, seed=2)
    return network.eval()


def prepare(folder: Path | None, *names: str, **options: Any) -> PreparedTasks:
    return prepare_tasks(expand_tasks(names), task_data=folder, **options)


def load(folder: Path, name: str, fewshot: int | None = 0) -> Any:
    """A task of lm-eval, as it is asked."""
    return prepare(folder, name, fewshot=fewshot).load()["tasks"][LOCAL_TASKS[name].task]


def measure(
    model: LanguageModel, folder: Path | None, *names: str, batch_size: int = 8, **options: Any
) -> dict[str, TaskScore]:
    loaded = LoadedModel(model, ByteTokenizer())
    asked = prepare(folder, *names, **options)
    return dict(measure_tasks(loaded, asked, batch_size=batch_size).scores)


def score(model: LanguageModel, prompt: bytes, answer: bytes) -> float:
    """The log-probability of an answer; a prompt that does not fit loses its beginning."""
    row = torch.tensor(list(prompt + answer)[-CONTEXT - 1 :])
    logits = model(row[None, :-1])[0].log_softmax(dim=-1)
    places = range(len(row) - 1 - len(answer), len(row) - 1)
    return sum(logits[at, row[at + 1]].item() for at in places)


def expect(hits: Sequence[float], choices: Sequence[int] | None) -> Any:
    """The metric of right and wrong answers."""
    chance = None if choices is None else statistics.mean(1 / one for one in choices)
    value, error = statistics.mean(hits), statistics.stdev(hits) / math.sqrt(len(hits))
    return pytest.approx({"value": value, "error": error, "chance": chance})


# The same questions in the fields of the hub, by hand: what lm-eval's own files were written for.
HUB: dict[str, list[dict[str, Any]]] = {
    "arc_easy": ARC,
    "arc_challenge": ARC[1:],
    "hellaswag": [
        {"activity_label": label, "ctx_a": first, "ctx_b": second, "endings": row["choices"]}
        | {"label": str(row["gold"])}
        for row, (label, first, second) in zip(
            HELLASWAG,
            [
                ("Roof shingle removal", "A man is sitting on a roof.", "he"),
                ("Clean and jerk", "She bends down and grabs the pole.", "the lady"),
                (
                    "Youth",
                    "[header] How to go [title] Take a bus. [step] Buy it before it leaves.",
                    "",
                ),
            ],
            strict=True,
        )
    ],
    "piqa": FILES["piqa_validation.jsonl"],
    "winogrande": FILES["winogrande_xl_validation.jsonl"],
    "lambada": [
        {"text": f"{row['context']} {row['continuation']}"}
        for row in FILES["lambada_openai_test.jsonl"]
    ],
}


def stock_task(name: str) -> Any:
    """lm-eval's own file as it is, on the hub's fields."""
    config = load_yaml(str(files("lm_eval") / "tasks" / LOCAL_TASKS[name].config))
    rows = datasets.Dataset.from_list(HUB[name])
    splits = {"train": rows, "validation": rows, "test": rows}
    config["custom_dataset"] = lambda **_: datasets.DatasetDict(splits)
    return ConfigurableTask(config={key: config[key] for key in config if key != "tag"})


@pytest.mark.parametrize("name", LOCAL_TASKS)
def test_questions_are_those_of_lm_eval_on_the_fields_of_the_hub(folder: Path, name: str) -> None:
    ours, stock = load(folder, name), stock_task(name)
    assert len(ours.eval_docs) == len(stock.eval_docs)
    for mine, other in zip(ours.eval_docs, stock.eval_docs, strict=True):
        asked = [
            [one.args for one in requests] if isinstance(requests, list) else [requests.args]
            for requests in (
                task.construct_requests(doc, task.fewshot_context(doc, 0), metadata=(name, 0, 1))
                for task, doc in ((ours, mine), (stock, other))
            )
        ]
        assert asked[0] == asked[1]
        assert ours.doc_to_target(mine) == stock.doc_to_target(other)


OWN_WORDS = {
    "hellaswag": lambda row: row["query"],
    "piqa": lambda row: row["goal"],
    "winogrande": lambda row: row["sentence"].partition("_")[2],
    "lambada": lambda row: row["text"][:15],
}


@pytest.mark.parametrize("name", OWN_WORDS)
def test_a_question_is_never_its_own_example(folder: Path, name: str) -> None:
    """With as many examples as there are others, each of them is there, and it itself once."""
    others = len(FILES[LOCAL_TASKS[name].evaluated]) - 1
    task = load(folder, name, others)
    documents, words = list(task.eval_docs), OWN_WORDS[name]
    for _ in range(5):
        for document in documents:
            prompt = task.fewshot_context(document, others)
            whole = (
                f"{prompt[0]} {task.doc_to_target(document)}" if name == "winogrande" else prompt
            )
            assert [whole.count(words(one)) for one in documents] == [1] * len(documents)


def test_examples_come_from_training_then_validation_then_the_others(tmp_path: Path) -> None:
    folder = write_task_files(tmp_path)
    assert load(folder, "arc_easy").fewshot_cfg.split == "arc_easy_validation.jsonl"
    write_rows(folder / "arc_easy_train.jsonl", ARC[2:3] * 5)
    task = load(folder, "arc_easy", None)
    assert task.config.test_split == "arc_easy_test.jsonl"
    prompt = task.fewshot_context(task.eval_docs[0], task.config.num_fewshot)
    assert prompt == f"Question: {ARC[2]['question']}\nAnswer: 6\n\n" * 5 + (
        f"Question: {ARC[0]['question']}\nAnswer:"
    )
    assert load(folder, "piqa").fewshot_cfg.split == "piqa_validation.jsonl"


def damages() -> list[tuple[str, dict[str, Any]]]:
    """Every field of every task missing, and answers that are none of the choices."""
    firsts = {
        name: FILES[LOCAL_TASKS[name].evaluated][0] for name in LOCAL_TASKS if name != "arc_easy"
    }
    found = [
        (name, {key: value for key, value in row.items() if key != lost})
        for name, row in firsts.items()
        for lost in row
        if lost != "id"
    ]
    found += [
        ("arc_challenge", {**ARC[0], "answerKey": "Z"}),
        ("arc_challenge", {**ARC[0], "choices": {"text": ["a"], "label": ["A", "B"]}}),
        ("hellaswag", {**HELLASWAG[0], "gold": 4}),
        ("hellaswag", {**HELLASWAG[0], "gold": -1}),
        ("piqa", {**FILES["piqa_validation.jsonl"][0], "label": 2}),
        ("winogrande", {**FILES["winogrande_xl_validation.jsonl"][0], "answer": "3"}),
        ("winogrande", {**FILES["winogrande_xl_validation.jsonl"][0], "sentence": "none"}),
        ("lambada", {"context": "a", "continuation": "two words"}),
    ]
    return found


@pytest.mark.parametrize(("name", "row"), damages())
def test_damage_is_named_with_its_line(tmp_path: Path, name: str, row: dict[str, Any]) -> None:
    folder = write_task_files(tmp_path)
    path = folder / LOCAL_TASKS[name].evaluated
    path.write_text(path.read_text("utf-8") + json.dumps(row) + "\n", "utf-8")
    line = len(FILES[path.name]) + 1
    with pytest.raises(DamagedError, match=rf"{path.name}:{line} is not a question of this task"):
        load(folder, name)


def test_missing_and_empty_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"expected the file piqa_validation\.jsonl .* got none"):
        prepare(tmp_path, "piqa")
    (tmp_path / "piqa_validation.jsonl").write_text("\n", "utf-8")
    with pytest.raises(DamagedError, match="has no questions"):
        load(tmp_path, "piqa")


def test_more_examples_than_there_are_are_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"0 to 2 .* piqa \(piqa_validation.jsonl\), got 3"):
        load(folder, "piqa", 3)
    with pytest.raises(UsageError, match="expected 0 to 6 few-shot examples for arc_easy"):
        load(folder, "arc_easy", 7)


def test_answers_are_those_of_the_network(
    folder: Path, model: LanguageModel, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every figure again, from plain log-probabilities of the same requests."""
    asked = prepare(folder, "five", "lambada", fewshot=1)
    measured = measure_tasks(LoadedModel(model, ByteTokenizer()), asked, batch_size=3)
    assert list(measured.scores) == [*FIVE, "lambada"]
    for name, found in measured.scores.items():
        task = load(folder, name, 1)
        task.build_all_requests(limit=None)
        answers: dict[int, list[float]] = {}
        lost = 0
        for request in task.instances:
            prompt, answer = (part.encode() for part in request.args)
            lost += len(prompt + answer) > CONTEXT + 1
            answers.setdefault(request.doc_id, []).append(score(model, prompt, answer))
        assert found.cut_prompts == pytest.approx(lost / len(task.instances))
        assert found.documents == len(answers)
        assert (found.fewshot, found.version) == (1, "1.0")
        assert (found.evaluated, found.shots_from) == (
            task.config.test_split,
            task.fewshot_cfg.split,
        )
        assert found.metrics["acc"]
        if name == "lambada":
            assert lost
            assert found.metrics["acc"].chance is None
            mean = statistics.mean(one for (one,) in answers.values())
            assert found.metrics["perplexity"].value == pytest.approx(math.exp(-mean), rel=1e-4)
            continue
        documents = [task.eval_docs[number] for number in answers]
        right = [
            task.doc_to_text(doc) if name == "winogrande" else task.doc_to_target(doc)
            for doc in documents
        ]
        best = [max(range(len(one)), key=one.__getitem__) for one in answers.values()]
        hits = [float(a == b) for a, b in zip(best, right, strict=True)]
        assert dataclasses.asdict(found.metrics["acc"]) == expect(
            hits, list(map(len, answers.values()))
        )
        assert (found.metrics.get("acc_norm") is None) == (name == "winogrande")
    assert measured.mean
    parts = [measured.scores[name].metrics for name in FIVE]
    for label in ("acc", "acc_norm"):
        mean, used = measured.mean[label], [one.get(label, one["acc"]) for one in parts]
        assert mean.value == pytest.approx(statistics.mean(one.value for one in used))
        assert mean.chance == pytest.approx(statistics.mean(one.chance or 0 for one in used))
        assert mean.error == pytest.approx(math.hypot(*(one.error for one in used)) / 5)
        assert mean.distance == pytest.approx((mean.value - mean.chance) / mean.error)
    four = {name: one for name, one in measured.scores.items() if name != "piqa"}
    assert dataclasses.replace(measured, scores=four).mean is None
    # Progress bars are for terminals.
    assert "Running loglikelihood" not in capsys.readouterr().err


QUESTIONS = {
    "arc_easy": "What is 1 and 1? 3",
    "arc_challenge": "What is 2 and 2? 6",
    "hellaswag": (
        "Roof shingle removal: A man is sitting on a roof. He starts pulling up roofing on a roof."
    ),
    "piqa": "dresser finish with  pin ",
    "winogrande": "Sarah was a better surgeon than Maria so Maria got the easier cases.",
    "lambada": "In my palm is a stone.\n\nI don't care about signs",
}


@pytest.mark.parametrize("name", LOCAL_TASKS)
def test_question_text_has_the_answer_and_no_labels(folder: Path, name: str) -> None:
    task = load(folder, name)
    assert question_text(task, task.eval_docs[0]) == QUESTIONS[name]


def test_contaminated_questions_are_left_out(
    folder: Path, model: LanguageModel, tmp_path: Path
) -> None:
    """The others score as in a file of their own."""
    names, questions = ["piqa", "hellaswag", "lambada"], list[str]()
    write_rows(tmp_path / "piqa_validation.jsonl", FILES["piqa_validation.jsonl"][::2])
    write_rows(tmp_path / "lambada_openai_test.jsonl", FILES["lambada_openai_test.jsonl"][:1])
    whole = measure(model, folder, *names, fewshot=0)
    alone = measure(model, tmp_path, "piqa", "lambada", fewshot=0)

    def find(asked: Sequence[str], **_: object) -> list[bool]:
        questions.extend(asked)
        return [False, True, False, True, True, True, False, True]

    training: Any = SimpleNamespace(find=find, describe=lambda: {"name": "given"})
    asked = dataclasses.replace(prepare(folder, *names, fewshot=0), against=training)
    measured = measure_tasks(LoadedModel(model, ByteTokenizer()), asked)
    assert measured.against == {"name": "given"}
    assert [questions[at] for at in (0, 3, 6)] == [QUESTIONS[name] for name in names]
    assert len(questions) == 8
    for name, shared in {"piqa": 1, "hellaswag": 3, "lambada": 1}.items():
        seen = measured.scores[name].contamination
        assert dataclasses.replace(measured.scores[name], contamination=None) == whole[name]
        assert seen
        assert (seen.questions, seen.shared) == (whole[name].documents, shared)
        metrics = alone[name].metrics if name in alone else {}
        assert seen.metrics == {one: metrics[one] for one in metrics if one != "perplexity"}
    assert alone["piqa"].metrics["acc"].chance == 0.5


def continue_greedily(model: LanguageModel, prompt: bytes, steps: int) -> bytes:
    tokens = list(prompt)
    for _ in range(steps):
        tokens.append(int(model(torch.tensor(tokens)[None])[0, -1].argmax()))
    return bytes(tokens[len(prompt) :])


@pytest.fixture
def stock(model: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of tasks that stands for those of lm-eval."""
    rows = []
    for number, row in enumerate(ROWS):
        # The right answer to all questions but the last.
        written = continue_greedily(model, f"Q: {row['question']}".encode(), 7)
        text = written.decode("utf-8", "replace").partition("@")[0]
        rows.append({**row, "written": text if number < 2 else "something else"})
    write_stock_tasks(tmp_path, rows)
    monkeypatch.setattr(
        task_measurement,
        "TaskManager",
        lambda **_: TaskManager(include_path=str(tmp_path), include_defaults=False),
    )
    monkeypatch.setattr(task_measurement, "find_hub_problem", lambda: None)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.usefixtures("stock")
def test_metrics_are_those_of_the_network(folder: Path, model: LanguageModel) -> None:
    """Also asked together with a task on local files."""
    found = measure(model, folder, *TASKS, "piqa", fewshot=0, batch_size=2)
    assert found.pop("piqa").documents == 3
    assert {name: (one.documents, one.fewshot) for name, one in found.items()} == dict.fromkeys(
        TASKS, (3, 0)
    )
    hits = []
    for row in ROWS:
        scores = [
            score(model, f"Q: {row['question']} A:".encode(), f" {choice}".encode())
            for choice in row["choices"]
        ]
        hits.append(float(max(range(len(scores)), key=scores.__getitem__) == row["right"]))
    assert dataclasses.asdict(found["choosing"].metrics["acc"]) == expect(hits, [3, 2, 4])
    texts = [row["question"].encode() for row in ROWS]
    total = sum(score(model, b"\0", text) for text in texts)
    reading = found["reading"].metrics["byte_perplexity"]
    assert reading.value == pytest.approx(math.exp(-total / sum(map(len, texts))), rel=1e-5)
    assert math.isnan(reading.error)
    assert found["writing"].metrics["exact_match"].value == pytest.approx(2 / 3)


@pytest.mark.usefixtures("stock")
def test_an_unknown_task_suggests_the_nearest() -> None:
    with pytest.raises(UsageError, match="expected a task, got 'choosings'; did you mean choosing"):
        prepare(None, "reading", "choosings")
    with pytest.raises(UsageError, match="got 'xyz'; `lm-eval ls tasks` lists all"):
        prepare(None, "xyz")


def test_what_cannot_be_evaluated_is_one_sentence(stock: Path, model: LanguageModel) -> None:
    (stock / "rows.jsonl").unlink()
    with pytest.raises(UsageError, match="lm-eval cannot evaluate choosing: ") as caught:
        measure(model, None, "choosing")
    assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match="a tokenizer that encodes any text"):
        measure_tasks(LoadedModel(model, CharacterTokenizer("abc")), prepare(None, "choosing"))


@pytest.mark.usefixtures("stock")
def test_a_hub_without_an_answer_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The libraries would retry for more than a minute."""
    monkeypatch.setattr(task_measurement, "find_hub_problem", lambda: "no route to host")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)

    class Manager:
        def load(self, _names: list[str]) -> None:
            assert datasets.config.HF_HUB_OFFLINE
            raise ConnectionError("Couldn't reach 'a/b' on the Hub")

    manager: Any = Manager()
    with pytest.raises(UsageError, match=r"choosing: .* \(no route to host\)$"):
        dataclasses.replace(prepare(None, "choosing"), manager=manager).load()
    assert not datasets.config.HF_HUB_OFFLINE


@pytest.mark.usefixtures("stock")
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no room"), UsageError("of ours")])
def test_what_is_ours_is_not_blamed_on_the_hub(
    error: Exception, model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise error

    monkeypatch.setattr(task_measurement, "evaluate", fail)
    with pytest.raises(type(error)) as caught:
        measure(model, None, "choosing")
    assert caught.value is error
    error = RuntimeError("a shape")
    with pytest.raises(UsageError, match=r"^lm-eval cannot evaluate choosing: a shape$"):
        measure(model, None, "choosing")


def test_options_of_a_task_are_not_dropped(model: LanguageModel) -> None:
    lm: Any = NetworkLM(model, ByteTokenizer(), batch_size=1)
    options = {"until": [str(n) for n in range(65)], "max_gen_toks": 7}
    request = SimpleNamespace(args=("a", options), task_name="mine")
    with pytest.raises(ValueError, match="at most 64 stop strings, got 65"):
        lm.generate_until([request])
    found = _sampling({"do_sample": True, "temperature": 0.5, "top_p": 0.3, "top_k": 7})
    assert found == Sampling(temperature=0.5, top_p=0.3, top_k=7)


def test_answers_are_counted_while_they_are_given(model: LanguageModel) -> None:
    lm, seen = NetworkLM(model, ByteTokenizer(), batch_size=2), list[tuple[int, int]]()
    with be_quiet(lambda done, total: seen.append((done, total))):
        lm._loglikelihood_tokens([(("", ""), [1, 2], [number]) for number in range(3)])
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_prompts_that_just_fit_are_not_truncated() -> None:
    lm = NetworkLM(byte_network("QKV@rotary", max_tokens=9).eval(), ByteTokenizer(), batch_size=2)
    fits, lost = (("", ""), [1] * 7, [2, 3, 4]), (("", ""), [1] * 8, [2, 3, 4])
    lm._names = ["one", "one", "two", "two", "two", "two"]
    lm._loglikelihood_tokens([fits, fits, fits, lost, fits, fits], disable_tqdm=True)
    assert [lm.truncated_share(name) for name in ("one", "two", "three")] == [0.0, 0.25, None]
