import json
import platform

from qkvary.storage.environment import machine


def test_what_is_known_of_the_machine_can_be_stored() -> None:
    known = machine()
    assert json.loads(json.dumps(known)) == known
    assert known["python"] == platform.python_version()
    assert known["torch"].startswith("2.")
    assert known["cpu"]
    assert known["cpu_count"] >= 1


def test_the_commit_is_that_of_the_checkout() -> None:
    commit = machine()["commit"]
    assert commit is None or len(commit.removesuffix("+")) == 40
