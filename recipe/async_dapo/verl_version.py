"""The pin: which verl this recipe runs on."""

from importlib.util import find_spec
from pathlib import Path

from .config import ConfigError

REQUIRED_VERL_FILE = Path(__file__).with_name("REQUIRED_VERL.txt")


def check_versions() -> None:
    """Refuse any verl but the pinned one, be it installed or a folder `verl` of the checkout, which Python prefers.

    Asked by the driver, the task runner, and every server and agent loop worker on its own node.

    Raises:
        ConfigError: naming the version found, its folder and the command that installs the right one.
    """
    required = REQUIRED_VERL_FILE.read_text().strip()
    found = _found_verl()
    if found.split()[0] != required:
        raise ConfigError("verl", found, f"this recipe needs {required}; run: pip install '{required}'")


def _found_verl() -> str:
    """Version and folder of the verl that an import takes, without importing it."""
    spec = find_spec("verl")
    if spec is None or spec.origin is None:
        return "none"
    folder = Path(spec.origin).parent
    file = folder / "version" / "version"
    return f"verl=={file.read_text().strip() if file.is_file() else 'unknown'} in {folder}"
