"""Write a language model for transformers: its own class, or stock GPT-2 or Llama."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.text import Text

from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.cli._options import Checkpoint, Json
from qkvary.cli._output import console, print_json, printable
from qkvary.storage.durable import check_folder
from qkvary.storage.packages import require

Out = Annotated[Path, Parameter(help="Folder to write.")]
To = Annotated[
    Literal["transformers", "gpt2", "llama"],
    Parameter(
        help="transformers keeps the sharing; gpt2 and llama (rotary networks) store "
        "copies, for any engine."
    ),
]


def command(
    checkpoint: Checkpoint, /, *, out: Out, to: To = "transformers", json_output: Json = False
) -> None:
    """Write a language model for transformers: its own class, or stock GPT-2 or Llama.

    Logits stay equal up to rounding. A network that the architecture cannot express is refused;
    losses are listed: stock architectures store copies of shared projections.
    """
    require("transformers")
    from qkvary.checkpoints.huggingface.folders import export_folder

    check_folder(out.absolute().parent)
    exported = export_folder(load_checkpoint(checkpoint), out, to=to)
    if json_output:
        print_json(
            {
                "checkpoint": checkpoint,
                "out": out,
                "to": to,
                "architecture": exported.architecture,
                "files": exported.files,
                "notes": exported.notes,
            }
        )
        return
    screen = console()
    size = sum(exported.files.values())
    screen.print(
        Text(
            printable(
                f"{out}: {exported.architecture}, {len(exported.files)} files, {size:,} bytes"
            )
        )
    )
    for note in exported.notes:
        screen.print(Text(printable(f"- {note}"), style="dim"))
