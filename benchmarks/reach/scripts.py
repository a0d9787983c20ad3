"""The options that verl's shell scripts start it with. A script is run by a shell that finds no program; its last line,
which would start verl, writes its arguments down instead.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

_SHELL = r"""
python3() { [ "$1 $2" = "-m verl.trainer.main_ppo" ] && printf '%s\0' "${@:3}" >&9; }
python() { python3 "$@"; }
set() { :; }
cd() { :; }
source() { :; }
command_not_found_handle() { :; }
trap '' PIPE
pwd() { echo /home; }
PATH=/nowhere PWD=/home
exec 9>&1 >/dev/null
. "$0"
"""
_DEPRECATED = "ppo_megatron_trainer"  # a configuration of verl's that stands for model_engine=megatron


def options_of(script: Path) -> Iterator[str]:
    """Its overrides, with shell variables in place; none where the script wants a variable of the user's first."""
    command = ["bash", "-c", _SHELL, str(script.absolute())]
    with TemporaryDirectory() as folder:  # a script may write files
        run = subprocess.run(
            command, cwd=folder, env={"HOME": "/home"}, stdin=subprocess.DEVNULL, capture_output=True, timeout=60
        )
    arguments = run.stdout.decode().split("\0")[:-1]
    if any(_DEPRECATED in argument for argument in arguments):
        yield "model_engine=megatron"
    # Whose folders a script was written for says nothing.
    named = (argument.replace("/root/", "/home/") for argument in arguments)
    yield from (argument for argument in named if "=" in argument and not argument.startswith("--"))
