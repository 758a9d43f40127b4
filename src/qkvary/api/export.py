"""Write a language model for other programs: transformers, or llama.cpp."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from qkvary.checkpoints.catalog import load_checkpoint, require_tokenizer
from qkvary.cli._options import Checkpoint, CheckpointTokenizer, Json
from qkvary.cli._output import show_lines
from qkvary.storage.durable import check_file, check_folder
from qkvary.storage.errors import UsageError
from qkvary.storage.packages import require
from qkvary.text.names import count

if TYPE_CHECKING:
    from qkvary.checkpoints.models import LoadedModel

Out = Annotated[Path, Parameter(help="Folder to write; with --to gguf, a file.")]
To = Annotated[
    Literal["transformers", "gpt2", "llama", "deepseek", "gguf"],
    Parameter(
        help="transformers keeps the sharing; gpt2, llama and deepseek store "
        "what engines know; gguf is a file for llama.cpp.",
    ),
]
Weights = Annotated[
    Literal["f32", "f16", "bf16", "q8_0"] | None,
    Parameter(help="With --to gguf: type of the matrices, f32 if not given."),
]


def command(
    checkpoint: Checkpoint,
    /,
    *,
    out: Out,
    to: To = "transformers",
    weights: Weights = None,
    tokenizer: CheckpointTokenizer = None,
    json_output: Json = False,
) -> None:
    """Write a language model for other programs: transformers, or llama.cpp.

    Logits stay equal up to rounding. A network that the other program cannot express is refused;
    losses are listed: stock architectures store copies of shared projections.
    """
    if weights is not None and to != "gguf":
        raise UsageError(f"expected --weights with --to gguf, got --to {to}")
    write = _write_gguf if to == "gguf" else _write_folder
    found = write(checkpoint, out, to, weights, tokenizer)
    size = sum(found["files"].values())
    files = count(len(found["files"]), "file")
    said = [
        f"{out}: {found['architecture']}, {files}, {size:,} bytes",
        *(f"- {note}" for note in found["notes"]),
    ]
    document = {"checkpoint": checkpoint, "out": out, "to": to, **found}
    show_lines(document, said, json_output=json_output)


def _load(checkpoint: Path, tokenizer: str | None) -> "LoadedModel":
    loaded = load_checkpoint(checkpoint)
    return loaded if tokenizer is None else require_tokenizer(loaded, checkpoint, tokenizer)[0]


def _write_folder(
    checkpoint: Path, out: Path, to: Any, _weights: object, tokenizer: str | None
) -> dict[str, Any]:
    require("transformers")
    from qkvary.checkpoints.chat_templates import read_chat_template
    from qkvary.checkpoints.huggingface.folders import export_folder

    check_folder(out.absolute().parent)
    template = read_chat_template(checkpoint)
    exported = export_folder(_load(checkpoint, tokenizer), out, to=to, chat_template=template)
    return exported._asdict()


def _write_gguf(
    checkpoint: Path, out: Path, _to: object, weights: Any, tokenizer: str | None
) -> dict[str, Any]:
    from qkvary.checkpoints.chat_templates import read_chat_template
    from qkvary.checkpoints.gguf.export import export_gguf

    check_file(out)
    kind = weights or "f32"
    loaded, template = _load(checkpoint, tokenizer), read_chat_template(checkpoint)
    exported = export_gguf(loaded, out, kind, chat_template=template)
    return {
        "architecture": exported.architecture,
        "files": {out.name: exported.size},
        "notes": exported.notes,
        "weights": kind,
    }
