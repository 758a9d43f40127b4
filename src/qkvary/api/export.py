"""Write a language model for other programs: the transformers library, or llama.cpp."""

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from qkvary.api.arguments import verb
from qkvary.api.options import Checkpoint, CheckpointTokenizer, open_checkpoint
from qkvary.api.results import Result, say_in_lines
from qkvary.storage.durable import check_file, check_folder
from qkvary.storage.errors import UsageError
from qkvary.storage.packages import require
from qkvary.text.names import count


@verb
def export(
    model: Checkpoint,
    out: Annotated[Path, Parameter(name="--out")],
    *,
    to: Literal["transformers", "hf", "gpt2", "llama", "deepseek", "gguf"] = "transformers",
    weights: Literal["f32", "f16", "bf16", "q8_0"] | None = None,
    tokenizer: CheckpointTokenizer = None,
) -> Result[dict[str, Any]]:
    """Write a language model for other programs: the transformers library, or llama.cpp.

    Logits stay equal up to rounding. A network that the other program cannot express is refused.
    The result lists what is lost in the export. For example, stock architectures store separate
    copies of shared projections.

    Args:
        model: The checkpoint, or what ``qk.load`` returned.
        out: Folder to write; for gguf, a file.
        to: With transformers, the export is a class of this project, in which projections stay
            shared. With hf, it is the matching stock class of the transformers library (GPT-2,
            Llama, Qwen 3, Gemma, ...), which inference engines support. With gpt2, llama or
            deepseek, it is the class of that name. With gguf, it is a file for llama.cpp.
        weights: For gguf: type of the matrices; f32 if not given.
        tokenizer: The tokenizer to use if the checkpoint has none.

    Raises:
        ValueError: if there is no such checkpoint, or the other program cannot express it.
        DamagedError: if the checkpoint is damaged.
    """
    if weights is not None and to != "gguf":
        raise UsageError(f"expected --weights only with --to gguf, got --to {to}")
    if to == "gguf":
        if out.suffix != ".gguf":
            raise UsageError(f"expected --out with a file NAME.gguf for --to gguf, got {out}")
        check_file(out)
    else:
        require("transformers")
        check_folder(out.absolute().parent)

    from qkvary.checkpoints.chat_templates import read_chat_template

    template = read_chat_template(model)
    loaded, name = open_checkpoint(model, tokenizer)
    found: dict[str, Any]
    if to == "gguf":
        from qkvary.checkpoints.gguf.export import export_gguf

        kind = weights or "f32"
        written = export_gguf(loaded, out, kind, chat_template=template)
        found = {**written._asdict(), "weights": kind}
    else:
        from qkvary.checkpoints.huggingface.folders import export_folder

        found = export_folder(loaded, out, to=to, chat_template=template)._asdict()
    size, files = sum(found["files"].values()), count(len(found["files"]), "file")
    document = {"checkpoint": name, "out": out, "to": to, **found}
    line = f"{out}: {found['architecture']}, {files}, {size:,} bytes"
    notes = (f"- {note}" for note in found["notes"])
    return Result(document, say_in_lines(f"export: {name}", document, line, *notes))
