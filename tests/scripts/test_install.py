"""The installation, with real uv and pip on package indexes in folders: nothing is downloaded."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from requirements.install_packages import UvUnsuitable, merged, pip_options, uv_environment
from tests.support.package_index import add_installed_package, add_package

REQUIREMENTS = Path(__file__).resolve().parents[2] / "requirements"
TORCH = "2.0+cpu"
UV = next(line for line in (REQUIREMENTS / "cpu.txt").read_text().splitlines() if line.startswith("uv=="))

# `python -m venv FOLDER` without the seconds that unpacking a pip of its own takes.
PYTHON = f"""#!/bin/sh
"{sys.executable}" -m venv --without-pip "$3"
ln -sfn "{importlib.metadata.distribution("pip").locate_file("pip")}" "$3"/lib/python3*/site-packages/
"""


class Machine:
    """One with its own package indexes, an installation script with a short lock, and no other sources."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.index = folder / "index"  # has the lock's packages, but not the CPU build of torch
        add_installed_package(self.index, "uv")
        for name, version in (("torch", "2.0"), ("another", "1.0")):
            add_package(self.index, name, version)
        self.torch_index = folder / "torch"
        add_package(self.torch_index, "torch", TORCH)
        self._python = folder / "python"
        self._python.write_text(PYTHON)
        self._python.chmod(0o755)
        scripts = folder / "requirements"
        scripts.mkdir()
        for name in ("install.sh", "install_packages.py"):
            shutil.copy(REQUIREMENTS / name, scripts)
        (scripts / "cpu.txt").write_text(f"another==1.0\ntorch=={TORCH}\n{UV}\n")

    def install(self, **variables: str) -> tuple[int, str]:
        """Exit status and output."""
        foreign = ("PIP_", "UV_", "TORCH_INDEX", "VIRTUAL_ENV")
        environment = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
        environment |= {
            "PYTHON": str(self._python),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": self.index.as_uri(),
            "UV_NO_CONFIG": "1",
            "UV_CACHE_DIR": str(self._folder / "cache"),
        }
        ended = subprocess.run(
            ["bash", str(self._folder / "requirements" / "install.sh"), str(self._folder / "venv")],
            env=environment | variables,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=500,
        )
        return ended.returncode, ended.stdout

    @property
    def installed(self) -> set[str]:
        folders = (self._folder / "venv" / "lib").glob("python*/site-packages/*.dist-info")
        return {folder.name.removesuffix(".dist-info") for folder in folders}

    def warnings_of(self, code: str) -> str:
        """What the environment's Python says of this code."""
        python = self._folder / "venv" / "bin" / "python"
        return subprocess.run([python, "-c", code], stderr=subprocess.PIPE, text=True, check=True).stderr


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_given_only_a_cuda_build_in_the_sources_when_installed_then_torch_alone_comes_from_the_other_index(machine):
    missing = (machine.index.parent / "nothing").as_uri()
    status, output = machine.install(TORCH_INDEX_URL=missing)
    assert status != 0
    assert f"from {missing}" in output and f"torch=={TORCH} was not installed" in output
    assert output.rstrip().endswith("set TORCH_INDEX_URL to a package index with torch's CPU builds")

    status, output = machine.install(TORCH_INDEX_URL=machine.torch_index.as_uri())
    assert status == 0, output
    assert {f"torch-{TORCH}", "another-1.0"} <= machine.installed, "a failed installation is not taken for a done one"
    assert len(output.splitlines()) == 2, "a short progress"
    assert machine.install(TORCH_INDEX_URL=missing) == (0, ""), "installed already"


def test_given_an_environment_when_torchvision_does_not_find_its_decoder_then_only_that_warning_is_silent(machine):
    machine.install(TORCH_INDEX_URL=machine.torch_index.as_uri())
    assert not machine.warnings_of("import warnings; warnings.warn('Failed to load image Python extension: image.so')")
    assert "UserWarning: another" in machine.warnings_of("import warnings; warnings.warn('another')")


def test_given_sources_that_uv_cannot_use_when_installed_then_pip_installs(machine):
    status, output = machine.install(
        TORCH_INDEX_URL=machine.torch_index.as_uri(), PIP_ONLY_BINARY=":all:", PIP_DISABLE_PIP_VERSION_CHECK="1"
    )
    assert status == 0, output
    assert "only-binary=:all:, which uv does not know" in output
    assert {f"torch-{TORCH}", "another-1.0"} <= machine.installed


def test_given_pips_configuration_when_read_then_a_variable_goes_before_a_file_and_empty_values_say_nothing():
    listed = """:env:.index-url='https://variable.example/simple'
:env:.proxy=''
global.index-url='https://file.example/simple'
global.proxy='http://proxy.example'
global.timeout='30'
install.timeout='60'
download.no-clean='true'
"""
    options = {"index-url": "https://variable.example/simple", "proxy": "http://proxy.example", "timeout": "60"}
    assert pip_options(listed) == options


def test_given_pips_options_when_translated_then_uv_reads_the_same_sources_unless_its_own_variable_says_otherwise():
    options = {
        "index-url": "https://index.example/simple",
        "extra-index-url": "\nfile:///one\nfile:///two",
        "find-links": "/wheels /more",
        "constraint": "/etc/constraints.txt",
        "progress-bar": "off",
    }
    environment = {"UV_DEFAULT_INDEX": "https://own.example", "REQUESTS_CA_BUNDLE": "/certificates"}
    assert uv_environment(options, environment) == {
        "UV_DEFAULT_INDEX": "https://own.example",
        "UV_INDEX": "file:///one file:///two",
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_CONSTRAINT": "/etc/constraints.txt",
        "SSL_CERT_FILE": "/certificates",
        "REQUESTS_CA_BUNDLE": "/certificates",
    }


def test_given_an_option_of_pip_without_counterpart_when_translated_then_it_is_named():
    with pytest.raises(UvUnsuitable, match="no-index=true"):
        uv_environment({"no-index": "true"}, {})


def test_given_two_locks_when_merged_then_the_second_ones_version_of_a_package_replaces_the_firsts():
    first = "# Comment: one==0.1\nSome_Package==1.0\ntorch==2.13.0+cpu\n"
    assert merged(first, "some-package==2.0\nadded==3.0\n") == ["some-package==2.0", "torch==2.13.0+cpu", "added==3.0"]
