import fcntl
import subprocess
from pathlib import Path

import pytest

from qkvary.storage import file_systems
from qkvary.storage.file_systems import FileSystem, find_file_system, locks_exclude

MOUNTS = """\
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
30 22 0:40 / /net rw,relatime shared:5 - nfs4 server:/net rw,vers=4.2,local_lock=none
31 22 0:41 / /net/old rw - nfs server:/old rw,vers=3,nolock,local_lock=all
32 22 0:42 / /net/with\\040space rw - lustre mds:/scratch rw,flock
33 22 0:43 / /lus rw - lustre mds:/scratch rw,localflock
34 22 0:44 / /ssh rw - fuse.sshfs me@host: rw
36 22 0:46 / /vm rw - 9p share rw
38 22 0:48 / /hidden rw - ext4 /dev/sdb rw
39 22 0:49 / /hidden rw - nfs4 server:/top rw,local_lock=none
40 22 0:50 / /netted rw - xfs /dev/sdc rw
damaged
"""


@pytest.fixture
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS)
    monkeypatch.setattr(file_systems, "_MOUNTS", tmp_path / "mountinfo")


@pytest.mark.usefixtures("mounts")
@pytest.mark.parametrize(
    ("path", "kind", "reach", "problem"),
    [
        ("/mine/runs", "ext4", "this machine", None),
        ("/net/runs", "nfs4", "all machines", None),
        ("/net/old/runs", "nfs", "this machine", "mounted with local_lock=all, nolock"),
        ("/net/with space/runs", "lustre", "all machines", None),
        ("/lus", "lustre", "this machine", "mounted with localflock"),
        ("/ssh/runs", "fuse.sshfs", "this machine", "mounted through ssh"),
        ("/vm/runs", "9p", "unknown", "it is not known whether locks"),
        ("/hidden/runs", "nfs4", "all machines", None),
        ("/netted/runs", "xfs", "this machine", None),
    ],
)
def test_how_far_locks_reach(path: str, kind: str, reach: str, problem: str | None) -> None:
    found = find_file_system(Path(path))
    assert found
    assert (found.kind, found.lock_reach) == (kind, reach)
    assert (found.lock_problem is None) == (problem is None)
    assert problem is None or problem in (found.lock_problem or "")


def test_the_file_system_of_a_folder_is_that_of_the_system(tmp_path: Path) -> None:
    found = find_file_system(tmp_path)
    assert isinstance(found, FileSystem)
    shown = subprocess.run(
        ["stat", "--file-system", "--format=%T", tmp_path],
        capture_output=True,
        text=True,
        check=True,
    )
    # The programs call ext4 ext2/ext3.
    assert found.kind[:3] in shown.stdout


def test_a_lock_keeps_another_process_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert locks_exclude(tmp_path)
    assert not locks_exclude(tmp_path / "absent")
    # A mount whose locks lock nothing.
    monkeypatch.setattr(fcntl, "flock", lambda _file, _how: None)
    assert not locks_exclude(tmp_path)
