"""Brings the records of ``studies/`` into the site, and points links at them."""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from qkvary.api.verbs import TARGETS

ROOT = Path(__file__).resolve().parents[1]
SHOWN = {".md", ".html", ".svg", ".png", ".json", ".csv"}
UPWARD = re.compile(r"\[([^\]]*)\]\((\.\./[^)\s#]*)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add pages, figures and tables of every study."""
    for path in sorted((ROOT / "studies").rglob("*")):
        if path.suffix in SHOWN and path.is_file():
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Point relative links at the site; for a file that it does not have, write the path.

    ``::: verbs`` stands for all verbs, in the order of the help.
    """
    named = (target.split(":") for target in TARGETS.values())
    verbs = (f"::: qkvary.{module}.{name}" for module, name in named if name != "command")
    markdown = markdown.replace("::: verbs", "\n\n".join(verbs))
    here = Path(page.file.src_uri).parent
    folder = ROOT / (here if here.parts[:1] == ("studies",) else "docs" / here)

    def point(found: re.Match[str]) -> str:
        words, target, anchor = found.groups(default="")
        path = (folder / target).resolve().relative_to(ROOT)
        if path.parts[0] == "docs":
            path = path.relative_to("docs")
        elif path.parts[0] != "studies":
            return words if path.as_posix() in words else f"{words} (`{path}`)"
        return f"[{words}]({posixpath.relpath(path.as_posix(), here.as_posix())}{anchor})"

    return UPWARD.sub(point, markdown)
