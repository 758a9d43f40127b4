"""Streams the documents of a data set of the Hugging Face hub, and stores only the position.

The library ``datasets`` reads them at a fixed commit: a position has no meaning in another version
of the data set. No code of a data set is ever run.
"""

import re
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, cast

from qkvary.data.documents import Document, is_blank, make_document
from qkvary.data.downloads import DownloadError, cache_only, find_hub_problem
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
    """The data set, as ``owner/name``."""
    split: str
    configuration: str | None = None
    revision: str | None = None
    """A commit of the data set; None for the latest."""
    field: str = "text"
    """The column that holds the text."""
    _stream: Any = None
    _rows: int = 0

    def read(self, position: JsonValue = None) -> Iterator[Document]:
        """Yield the documents after a position, or all documents if the position is None."""
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
        """Return the position after the document that ``read`` yielded last."""
        return {"rows": self._rows, "state": self._stream.state_dict()}

    def _open(self) -> Any:
        require("datasets")
        # Slow to import and only needed for streaming from the hub.
        import datasets  # noqa: PLC0415

        with cache_only() if find_hub_problem() else nullcontext():
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
            document = make_document(row, self.field, where)
            if not is_blank(document.text):
                yield document


def parse_hub(text: str) -> tuple[str, str | None, str | None]:
    """Return the parts of ``owner/name[:configuration][@revision]``."""
    match = _REFERENCE.fullmatch(text)
    if match is None or ".." in text:
        raise UsageError(
            "expected hf:owner/name, optionally with :configuration and @revision, got "
            f"{('hf:' + text)[:80]!r}"
        )
    return match["repository"], match["configuration"], match["revision"]


def find_commit(repository: str, revision: str | None) -> str:
    """Return the commit that a revision names; None means the main branch."""
    if revision is not None and _COMMIT.fullmatch(revision):
        return revision
    require("datasets")
    problem = find_hub_problem()
    if problem is not None:
        raise _unreachable(repository, problem)
    # huggingface_hub comes with datasets, and takes as long to import.
    import huggingface_hub  # noqa: PLC0415
    from huggingface_hub import errors  # noqa: PLC0415

    try:
        found = huggingface_hub.HfApi().dataset_info(repository, revision=revision).sha
    except errors.RevisionNotFoundError:
        raise UsageError(f"hf:{repository} has no revision {revision}") from None
    except errors.RepositoryNotFoundError:
        raise UsageError(
            f"hf:{repository}: the data set does not exist on the hub, or is not accessible"
        ) from None
    except Exception as error:  # depends on the HTTP client of the library
        raise _unreachable(repository, _first_line(error)) from error
    return cast("str", found)


def _unreachable(repository: str, reason: str) -> DownloadError:
    return DownloadError(
        f"cannot reach hf:{repository} ({reason}); without a network, give a file or a folder of "
        "texts"
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).partition("\n")[0]
