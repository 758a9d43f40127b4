"""Print the completion script of a shell.

For example ``qkvary completion bash > ~/.local/share/bash-completion/completions/qkvary``.
"""

import sys
from typing import Annotated, Literal

from cyclopts import Parameter

BASH = r"""
# bash splits labels of variants at their "=": this joins the parts again for the completion.
_qkvary_joined() {
  local -a words=()
  local i word
  for ((i=0; i<=COMP_CWORD; i++)); do
    word="${COMP_WORDS[i]}"
    if ((i < 2)) || [[ $word != "=" && ${COMP_WORDS[i-1]} != "=" || ${words[-1]} == [-=]* ]]; then
      words+=("$word")
    else
      words[-1]+="$word"
    fi
  done
  word="${COMP_WORDS[COMP_CWORD]#=}"
  local head="${words[-1]%"$word"}"
  local -a COMP_WORDS=("${words[@]}")
  local COMP_CWORD=$((${#words[@]} - 1))
  _qkvary
  COMPREPLY=("${COMPREPLY[@]#"$head"}")
}

complete -F _qkvary_joined qkvary
"""
"""The end of the bash completion script; it replaces the last line that cyclopts generates."""


def command(
    shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="The shell to complete in.")],
) -> None:
    """Print the completion script of a shell.

    Put it where the shell looks, for example
    qkvary completion bash > ~/.local/share/bash-completion/completions/qkvary
    """
    from qkvary.cli.app import build_app

    script = build_app().generate_completion(shell=shell)
    if shell == "bash":
        script = script.rstrip().removesuffix("complete -F _qkvary qkvary").rstrip() + "\n" + BASH
    sys.stdout.write(script)
