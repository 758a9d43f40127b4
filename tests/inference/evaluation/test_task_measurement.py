"""lm-eval asks our networks its own prompts on local files, offline."""

import dataclasses
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks._yaml_loader import load_yaml

from qkvary.data.tokenizers import ByteTokenizer
from qkvary.inference.evaluation.task_scores import FIVE
from qkvary.inference.evaluation.network_lm import (
    NetworkLM,
    configure_task,
    evaluate_tasks,
    question_text,
)
from qkvary.inference.evaluation.local_tasks import LOCAL_TASKS
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.errors import UsageError
from tests.contracts.variant_cases import randomize
from tests.inference.evaluation.networks import byte_network
from tests.inference.evaluation.task_files import ARC, FILES, write_task_files

CONTEXT = 160


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_task_files(tmp_path_factory.mktemp("tasks"))


def network(label: str = "Q-K=V@rotary") -> LanguageModel:
    model = byte_network(label, max_tokens=CONTEXT)
    randomize(model, seed=2)
    return model.eval()


# The same questions in the fields of the hub, by hand: what lm-eval's own files were written for.
HUB: dict[str, list[dict[str, Any]]] = {
    "arc_easy": [{**row, "answerKey": row["answerKey"]} for row in ARC],
    "arc_challenge": [{**row, "answerKey": row["answerKey"]} for row in ARC[1:]],
    "hellaswag": [
        {
            "activity_label": label,
            "ctx_a": before,
            "ctx_b": behind,
            "endings": row["choices"],
            "label": str(row["gold"]),
        }
        for row, (label, before, behind) in zip(
            FILES["hellaswag_validation.jsonl"],
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
    config = load_yaml(str(files("lm_eval") / LOCAL_TASKS[name].config))
    rows = datasets.Dataset.from_list(HUB[name])
    splits = {"train": rows, "validation": rows, "test": rows}
    config["custom_dataset"] = lambda **_: datasets.DatasetDict(splits)
    return ConfigurableTask(config={key: config[key] for key in config if key != "tag"})


@pytest.mark.parametrize("name", LOCAL_TASKS)
def test_questions_are_those_of_lm_eval_on_the_fields_of_the_hub(folder: Path, name: str) -> None:
    ours, stock = configure_task(name, folder, fewshot=0).task, stock_task(name)
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
    task = configure_task(name, folder, fewshot=others).task
    documents, words = list(task.eval_docs), OWN_WORDS[name]
    for _ in range(5):
        for document in documents:
            prompt = task.fewshot_context(document, others)
            whole = (
                f"{prompt[0]} {task.doc_to_target(document)}" if name == "winogrande" else prompt
            )
            assert [whole.count(words(one)) for one in documents] == [1] * len(documents)


def test_examples_come_from_the_other_file(folder: Path) -> None:
    task = configure_task("arc_challenge", folder, fewshot=5).task
    prompt = task.fewshot_context(task.eval_docs[0], 5)
    assert prompt.count("Question:") == 6
    assert prompt.count("\n\n") == 5
    assert prompt.endswith(f"Question: {ARC[1]['question']}\nAnswer:")


@pytest.mark.parametrize("label", ["Q-K=V@rotary"])
def test_answers_are_those_of_the_network(folder: Path, label: str) -> None:
    """Every figure again, from plain log-probabilities of the same requests."""
    model, tokenizer = network(label), ByteTokenizer()
    found = evaluate_tasks(
        model, tokenizer, [*FIVE, "lambada"], folder=folder, fewshot=1, batch_size=3
    )
    assert list(found) == [*FIVE, "lambada"]
    for name, score in found.items():
        task = configure_task(name, folder, fewshot=1).task
        task.build_all_requests(limit=None)
        answers: dict[int, list[float]] = {}
        lost = 0
        for request in task.instances:
            prompt, answer = (list(part.encode()) for part in request.args)
            lost += len(prompt + answer) > CONTEXT + 1
            row = torch.tensor((prompt + answer)[-CONTEXT - 1 :])
            logits = model(row[None, :-1])[0].log_softmax(dim=-1)
            places = range(len(row) - 1 - len(answer), len(row) - 1)
            total = sum(logits[at, row[at + 1]].item() for at in places)
            answers.setdefault(request.doc_id, []).append(total)
        assert score.cut_prompts == pytest.approx(lost / len(task.instances))
        assert score.documents == len(answers)
        assert (score.fewshot, score.version) == (1, "1.0")
        if name == "lambada":
            assert score.accuracy.chance is None
            mean = sum(one for (one,) in answers.values()) / len(answers)
            assert score.perplexity == pytest.approx(torch.tensor(-mean).exp().item(), rel=1e-4)
            continue
        documents = [task.eval_docs[number] for number in answers]
        right = [
            task.doc_to_text(doc) if name == "winogrande" else task.doc_to_target(doc)
            for doc in documents
        ]
        best = [max(range(len(one)), key=one.__getitem__) for one in answers.values()]
        hits = [float(a == b) for a, b in zip(best, right, strict=True)]
        assert score.accuracy.value == pytest.approx(sum(hits) / len(hits))
        choices = [len(one) for one in answers.values()]
        assert score.accuracy.chance == pytest.approx(sum(1 / one for one in choices) / len(hits))
        assert (score.normalised is None) == (name == "winogrande")


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
    task = configure_task(name, folder, fewshot=0).task
    assert question_text(task, task.eval_docs[0]) == QUESTIONS[name]


def test_contaminated_questions_are_left_out(folder: Path) -> None:
    """Each answer by itself: of what is right among the first so many, the last."""
    model, names = network(), ["piqa", "hellaswag", "lambada"]
    first = [
        evaluate_tasks(model, ByteTokenizer(), names, folder=folder, fewshot=0, limit=count)
        for count in (1, 2, 3)
    ]
    asked: list[str] = []

    def find_shared(questions: Sequence[str]) -> list[bool]:
        asked.extend(questions)
        return [False, True, False, True, True, True, False, True]

    found = evaluate_tasks(
        model, ByteTokenizer(), names, folder=folder, fewshot=0, find_shared=find_shared
    )
    assert [asked[0], asked[3], asked[6]] == [QUESTIONS[name] for name in names]
    assert len(asked) == 8
    for name, kept in {"piqa": [0, 2], "hellaswag": [], "lambada": [0]}.items():
        whole, seen = first[2][name], found[name].contamination
        assert dataclasses.replace(found[name], contamination=None) == whole
        assert seen
        assert (seen.questions, seen.questions - seen.shared) == (whole.documents, len(kept))
        for metric in ("accuracy", "normalised"):
            sums = [0.0]
            for part in first:
                share = getattr(part[name], metric)
                sums.append(0.0 if share is None else share.value * part[name].documents)
            share = getattr(seen, metric)
            if not kept or getattr(whole, metric) is None:
                assert share is None
                continue
            right = [round(sums[one + 1] - sums[one]) for one in kept]
            assert share.value == pytest.approx(sum(right) / len(right))
            spread = sum((one - share.value) ** 2 for one in right)
            if len(kept) > 1:
                assert share.error == pytest.approx((spread / 2) ** 0.5)
            assert share.chance == (0.5 if name == "piqa" else None)


@pytest.mark.parametrize(
    ("names", "fewshot", "message"),
    [
        (["mmlu"], None, "expected a task, got 'mmlu'; choices: arc_easy, arc_challenge, hella"),
        (["piqa"], 3, r"expected 0 to 2 solved examples for piqa \(piqa_validation.jsonl\), got 3"),
        (["arc_easy"], 7, r"expected 0 to 6 solved examples for arc_easy"),
        (["arc_easy"], -1, r"expected 0 to 6 solved examples for arc_easy"),
    ],
)
def test_invalid_tasks_are_rejected(
    folder: Path, names: list[str], fewshot: int | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        evaluate_tasks(network(), ByteTokenizer(), names, folder=folder, fewshot=fewshot)


def test_prompts_that_just_fit_are_not_truncated() -> None:
    lm = NetworkLM(byte_network("QKV@rotary", max_tokens=9).eval(), ByteTokenizer(), batch_size=2)
    fits, lost = (("", ""), [1] * 7, [2, 3, 4]), (("", ""), [1] * 8, [2, 3, 4])
    lm._names = ["one", "one", "two", "two", "two", "two"]
    lm._loglikelihood_tokens([fits, fits, fits, lost, fits, fits], disable_tqdm=True)
    assert [lm.truncated_share(name) for name in ("one", "two", "three")] == [0.0, 0.25, None]


@pytest.fixture(autouse=True)
def nothing_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a test opened a connection")

    monkeypatch.setattr("socket.socket.connect", refuse)
