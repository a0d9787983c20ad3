"""The pins: which verl, vLLM and TransferQueue this recipe runs on."""

import logging
import re
import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

from packaging.specifiers import SpecifierSet

from ..config.values import ConfigError

logger = logging.getLogger(__name__)

REQUIRED_VERL_FILE = Path(__file__).parents[1] / "REQUIRED_VERL.txt"

# Import name -> versions whose calls the recipe knows. Both ends have been run: 0.24.0 is what verl's extra brings on
# GPUs, 0.27.1 what runs on CPUs; verl itself asks for TransferQueue 0.1.10.
REQUIRED_OTHERS = {"vllm": SpecifierSet(">=0.24.0,<0.28"), "transfer_queue": SpecifierSet(">=0.1.10,<0.2")}
VERSION_FILES = {"verl": "version/version", "vllm": "_version.py", "transfer_queue": "version/version"}


def check_versions() -> str:
    """Refuse any verl but the pinned one, be it installed or a folder `verl` of the checkout, which Python prefers, and
    any vLLM or TransferQueue that the recipe does not know.

    Asked by the driver, the task runner, and every server and agent loop worker on its own node.

    Returns:
        What was found.

    Raises:
        ConfigError: naming the version found, its folder and the command that installs the right one.
    """
    required = REQUIRED_VERL_FILE.read_text().strip()
    found = [_found("verl")]
    if found[0].split()[0] != required:
        raise ConfigError("verl", found[0], f"this recipe needs {required}; run: pip install '{required}'")
    for name, versions in REQUIRED_OTHERS.items():
        found.append(_found(name))
        version = found[-1].split()[0].removeprefix(f"{name}==")
        if not re.match(r"\d", version) or not versions.contains(version, prereleases=True):
            raise ConfigError(
                name, found[-1], f"this recipe needs {name}{versions}; run: pip install 'verl[vllm]{required[4:]}'"
            )
    return ", ".join(one.split()[0] for one in found)


def tell_of_hidden_copies() -> None:
    """Warn of a package that Python finds twice, such as a checkout in the working folder beside what is installed, and
    say which of the two is imported. Both may have the same version, although something was changed in one.
    """
    for name in VERSION_FILES:
        later = (PathFinder.find_spec(name, [entry]) for entry in sys.path)
        origins = [spec.origin for spec in (find_spec(name), *later) if spec is not None and spec.origin is not None]
        used, *hidden = dict.fromkeys(str(Path(origin).resolve().parent) for origin in origins)
        if hidden:
            logger.warning(
                "%s is imported from %s, which hides the one in %s; if that is not meant, start in another folder",
                *(name, used, ", ".join(hidden)),
            )


def _found(name: str) -> str:
    """Version and folder of the package that an import takes, without importing it."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        return "none"
    folder = Path(spec.origin).parent
    file = folder / VERSION_FILES[name]
    version = re.search(r"(?:^|\b__version__ = .*')(\d[\w.+-]*)", file.read_text()) if file.is_file() else None
    return f"{name}=={version[1] if version else 'unknown'} in {folder}"
