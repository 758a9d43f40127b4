"""Documents of a data set of the hub, streamed: nothing is kept but the place that was reached.

The library ``datasets`` reads them, at a commit that is found out once: a place in what a data set
is on one day means nothing in what it is on another. No code of a data set is ever run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from qkvary.data.documents import Document, checked_document, is_blank
from qkvary.data.downloads import DownloadError
from qkvary.storage.errors import UsageError
from qkvary.storage.jsonvalues import JsonValue
from qkvary.storage.packages import require

_REFERENCE = re.compile(
    r"(?P<repository>[\w.-]+/[\w.-]+)(?::(?P<configuration>[\w.-]+))?(?:@(?P<revision>[\w./-]+))?"
)
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(slots=True, kw_only=True)
class HubDocuments:
    """One split of a data set."""

    repository: str
    """``owner/name``."""
    split: str
    """As the data set calls it."""
    configuration: str | None = None
    """Where the data set has several."""
    revision: str | None = None
    """A commit of the data set; what it is today by default."""
    field: str = "text"
    """Which column is the text."""
    _stream: Any = None
    _rows: int = 0

    def read(self, position: JsonValue = None) -> Iterator[Document]:
        """The documents behind a position, or all.

        Raises:
            UsageError: if there is no such data set or column, or a row is no text.
            DownloadError: if the hub does not give it.
        """
        try:
            self._stream = self._open()
            self._rows = 0
            if position is not None:
                place = cast("dict[str, Any]", position)
                self._stream.load_state_dict(place["state"])
                self._rows = place["rows"]
            yield from self._documents()
        except FileNotFoundError as error:
            raise UsageError(f"hf:{self.repository}: {_first_line(error)}") from None
        except UsageError:
            raise
        except (OSError, ValueError, RuntimeError) as error:
            raise DownloadError(f"cannot read hf:{self.repository}: {_first_line(error)}") from None

    def position(self) -> JsonValue:
        """Behind the document that ``read`` gave last."""
        return {"rows": self._rows, "state": self._stream.state_dict()}

    def _open(self) -> Any:
        require("datasets")
        # Only who streams from the hub needs the library, which takes long to import.
        import datasets  # noqa: PLC0415

        return datasets.load_dataset(
            self.repository,
            self.configuration,
            split=self.split,
            revision=self.revision,
            streaming=True,
        )

    def _documents(self) -> Iterator[Document]:
        for row in self._stream:
            self._rows += 1
            where = f"hf:{self.repository} ({self.split}), row {self._rows}"
            if self.field not in row:
                raise UsageError(
                    f"{where}: expected the column {self.field!r}, got {', '.join(list(row)[:5])}; "
                    "name the text with `qkvary data prepare ... --field NAME`"
                )
            document = checked_document(row[self.field], where, self.field)
            if not is_blank(document.text):
                yield document


def parse_hub(reference: str) -> tuple[str, str | None, str | None]:
    """Repository, configuration and revision of ``owner/name[:configuration][@revision]``.

    Raises:
        UsageError: for anything else.
    """
    match = _REFERENCE.fullmatch(reference)
    if match is None or ".." in reference:
        raise UsageError(
            "expected hf:owner/name, and perhaps :configuration and @revision, got "
            f"{('hf:' + reference)[:80]!r}"
        )
    return match["repository"], match["configuration"], match["revision"]


def find_commit(repository: str, revision: str | None) -> str:
    """The commit that a data set is at.

    Args:
        repository: ``owner/name``.
        revision: A branch, tag or commit; the main branch if ``None``.

    Raises:
        UsageError: if there is no such data set or revision.
        DownloadError: if the hub does not say.
    """
    if revision is not None and _COMMIT.fullmatch(revision):
        return revision
    require("datasets")
    # It comes with datasets, and takes as long to import.
    import huggingface_hub  # noqa: PLC0415
    from huggingface_hub import errors  # noqa: PLC0415

    try:
        found = huggingface_hub.HfApi().dataset_info(repository, revision=revision).sha
    except errors.RevisionNotFoundError:
        raise UsageError(f"hf:{repository} has no revision {revision}") from None
    except errors.RepositoryNotFoundError:
        raise UsageError(
            f"hf:{repository}: the hub has no such data set, or does not give it to you"
        ) from None
    except Exception as error:  # those of whatever talks to the hub for the library
        raise DownloadError(
            f"cannot find out the commit of hf:{repository}: {_first_line(error)}"
        ) from error
    if found is None:
        raise DownloadError(f"cannot find out the commit of hf:{repository}: the hub names none")
    return found


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).partition("\n")[0]
