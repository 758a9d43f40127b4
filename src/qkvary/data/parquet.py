"""One column of a parquet file, row by row, read by pyarrow."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.packages import require

_ROWS = 1024


def read_parquet(path: Path, field: str) -> Iterator[Any]:
    """Yield the values of a column, in order.

    Raises:
        UsageError: if the file or column does not exist, or pyarrow is not installed.
        DamagedError: if the file is not valid parquet.
    """
    require("pyarrow")
    # Only needed for such files.
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import parquet  # noqa: PLC0415

    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if field not in names:
                raise UsageError(
                    f"{path}: expected the column {field!r}, got {', '.join(names[:5]) or 'none'}; "
                    "name the text with `qkvary data prepare ... --field NAME`"
                )
            for batch in file.iter_batches(batch_size=_ROWS, columns=[field]):
                yield from batch.column(0).to_pylist()
    except (pa.ArrowException, ValueError, OSError) as error:
        if isinstance(error, UsageError):
            raise
        first = str(error).partition("\n")[0]
        raise DamagedError(f"{path} cannot be read as parquet: {first}") from None
