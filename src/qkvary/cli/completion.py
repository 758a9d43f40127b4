"""Print the completion script of a shell.

For example ``qkvary completion bash > ~/.local/share/bash-completion/completions/qkvary``.
"""

import sys
from typing import Annotated, Literal

from cyclopts import Parameter


def command(
    shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="The shell to complete in.")],
) -> None:
    """Print the completion script of a shell.

    Put it where the shell looks, for example
    qkvary completion bash > ~/.local/share/bash-completion/completions/qkvary
    """
    from qkvary.cli.app import build_app

    sys.stdout.write(build_app().generate_completion(shell=shell))
