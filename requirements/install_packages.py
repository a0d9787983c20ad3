"""Installs locked packages beside the interpreter that runs this: `python install_packages.py LOCK [CHANGES]`.

uv takes a fraction of pip's time, but reads nothing of pip's configuration, so that is translated. Where it says
something that uv does not know, where uv is not to be had, or where uv fails, pip does the work.
"""

import ast
import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

# A line that each start of the environment's Python runs. The lock's torchvision is of another build than its torch:
# its Python code serves for pictures, and its decoder of files, which nothing here uses, does not load.
_WITHOUT_DECODER = 'import warnings; warnings.filterwarnings("ignore", "Failed to load image Python extension")'

TORCH_INDEX_VARIABLE = "TORCH_INDEX_URL"
PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"

# pip's option -> uv's variable with the same meaning, and what separates several values there.
_COUNTERPARTS = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "constraint": ("UV_CONSTRAINT", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "client-cert": ("SSL_CLIENT_CERT", " "),
    "proxy": ("ALL_PROXY", " "),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", " "),
    "retries": ("UV_HTTP_RETRIES", " "),
}
_CERTIFICATES = ("CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE")
# These change neither where packages come from nor which are taken.
_IRRELEVANT = {
    "cache-dir",
    "config-file",
    "disable-pip-version-check",
    "no-cache-dir",
    "no-color",
    "no-compile",
    "no-deps",
    "no-input",
    "no-warn-script-location",
    "prefer-binary",
    "progress-bar",
    "quiet",
    "require-virtualenv",
    "root-user-action",
    "verbose",
}


class InstallationFailed(Exception):
    """The message says what could not be installed, and why."""


class UvUnsuitable(Exception):
    """uv would not take packages from where pip does; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installer:
    """uv or pip, as a command that packages are appended to."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    index_option: str  # what names the index that is asked beside the extra ones

    def install(self, *arguments: str) -> None:
        """Without resolving dependencies.

        Raises:
            InstallationFailed: with all output of the command, of which there is none otherwise.
        """
        ended = subprocess.run(
            [*self.command, "--no-deps", *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if ended.returncode != 0:
            raise InstallationFailed(ended.stdout.strip())


def main() -> None:
    lock = Path(sys.prefix, "lock.txt")
    lock.write_text("".join(f"{pin}\n" for pin in merged(*(Path(file).read_text() for file in sys.argv[1:]))))
    torch, uv = (_pin(lock, name) for name in ("torch", "uv"))
    pip = Installer(
        command=(sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check"),
        index_option="--index-url",
    )
    started = time.monotonic()
    try:
        _install(_make_uv(pip, uv), lock, torch)
    except (UvUnsuitable, InstallationFailed) as reason:
        _say(f"{reason}\nuv did not do it, for the reason above; trying pip, which takes about three minutes")
        try:
            _install(pip, lock, torch)
        except InstallationFailed as failure:
            sys.exit(str(failure))
    Path(sysconfig.get_path("purelib"), "without_decoder.pth").write_text(f"{_WITHOUT_DECODER}\n")
    _say(f"installed in {time.monotonic() - started:.0f} s")


def _install(installer: Installer, lock: Path, torch: str) -> None:
    """The suffix +cpu asks for the build without CUDA, which is several GB smaller and in few indexes."""
    fallback = os.environ.get(TORCH_INDEX_VARIABLE) or PYTORCH_CPU_INDEX
    errors = []
    for source in ((), (installer.index_option, fallback)):
        try:
            installer.install(*source, torch)
            break
        except InstallationFailed as failure:
            errors.append(str(failure))
    else:
        raise InstallationFailed(
            f"from the configured sources:\n{errors[0]}\n\nfrom {fallback}:\n{errors[1]}\n\n{torch} was not installed; "
            f"if it was not found, set {TORCH_INDEX_VARIABLE} to a package index with torch's CPU builds"
        )
    installer.install("--requirement", str(lock))


def _make_uv(pip: Installer, uv: str) -> Installer:
    """
    Raises:
        UvUnsuitable: naming what uv does not know.
        InstallationFailed: there is no uv.
    """
    translated = uv_environment(pip_options(_pip_configuration()), os.environ)
    pip.install(uv)
    command = (str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", "--python", sys.executable)
    # As pip does: a version may come from any source, and modules are compiled now rather than at their first import.
    return Installer(
        command=(*command, "--index-strategy", "unsafe-best-match", "--compile-bytecode"),
        environment=translated,
        index_option="--default-index",
    )


def _pip_configuration() -> str:
    command = [sys.executable, "-m", "pip", "config", "list"]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def pip_options(configuration: str) -> dict[str, str]:
    """What `pip install` is configured to, from the output of `pip config list`.

    A variable is preferred to the section of `install`, and that to the global section; empty values say nothing.
    """
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in configuration.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if section in sections and (text := ast.literal_eval(value)):
            sections[section][key] = text
    return sections["global"] | sections["install"] | sections[":env:"]


def uv_environment(options: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` with pip's options as uv's variables; one that is set already is left alone.

    Also with the certificates that pip takes from a variable of the library it uses.

    Raises:
        UvUnsuitable: for an option without a counterpart.
    """
    certificates = [("cert", environment[name]) for name in _CERTIFICATES if environment.get(name)]
    return {**dict(_translated(dict(certificates) | dict(options))), **environment}


def _translated(options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for key, value in options.items():
        if key in _COUNTERPARTS:
            variable, separator = _COUNTERPARTS[key]
            yield variable, separator.join(value.split())
        elif key not in _IRRELEVANT:
            raise UvUnsuitable(f"pip is configured with {key}={value}, which uv does not know")


def merged(*locks: str) -> list[str]:
    """The pins of several locks; of a package that several have, the last one's."""
    pins = [line for lock in locks for line in lock.splitlines() if "==" in line and not line.startswith("#")]
    return list({pin.partition("==")[0].lower().replace("_", "-"): pin for pin in pins}.values())


def _pin(lock: Path, name: str) -> str:
    return next(line for line in lock.read_text().splitlines() if line.startswith(f"{name}=="))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
