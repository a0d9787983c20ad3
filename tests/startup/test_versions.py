"""Packages of another version are refused, with the command that installs the right one."""

import re
import sys
from pathlib import Path

import pytest

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.runtime import verl_version
from recipe.async_dapo.runtime.verl_version import check_versions, tell_of_hidden_copies

from ..support.composed_runs import write_verl


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A folder that Python searches before the installed packages."""
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("verl", "vllm", "transfer_queue"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def test_given_another_verl_in_the_checkout_when_checked_then_it_is_found_and_the_required_one_named(checkout):
    write_verl(checkout / "verl", "0.10.0.dev")
    folder = re.escape(str(checkout / "verl"))
    with pytest.raises(ConfigError, match=rf"^verl=verl==0\.10\.0\.dev in {folder}: .*pip install 'verl==0\.9\.1'$"):
        check_versions()
    (checkout / "verl" / "version" / "version").write_text("0.9.1\n")
    check_versions()


def test_given_a_second_verl_of_the_required_version_in_the_working_folder_then_both_are_named(checkout, caplog):
    tell_of_hidden_copies()
    assert not caplog.records, "one copy of each is nothing to tell"
    write_verl(checkout / "verl", "0.9.1")
    with caplog.at_level("WARNING", logger=verl_version.__name__):
        tell_of_hidden_copies()
    [said] = [record.getMessage() for record in caplog.records]
    assert (
        said.startswith(f"verl is imported from {checkout}/verl, which hides the one in /") and "site-packages" in said
    )


def test_given_no_verl_when_checked_then_the_required_one_is_named(checkout, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(checkout)])
    with pytest.raises(ConfigError, match=r"^verl=none: .*pip install 'verl==0\.9\.1'$"):
        check_versions()


def write_package(folder: Path, file: str, text: str) -> Path:
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / "__init__.py").touch()
    (folder / file).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("package", "file", "text", "message"),
    [
        *(
            (
                "vllm",
                "_version.py",
                f"__version__ = version = '{version}'",
                rf"{version} in .*needs vllm.*0\.24\.0.*pip install",
            )
            for version in ("0.23.1", "0.28.0", "0.9.0")
        ),
        ("vllm", "nothing.txt", "", "unknown in "),
        ("transfer_queue", "version/version", "0.2.0", r"0\.2\.0 in .*needs transfer_queue"),
    ],
)
def test_given_a_package_that_the_recipe_does_not_know_when_checked_then_it_is_refused(
    checkout, package, file, text, message
):
    write_package(checkout / package, file, f"{text}\n")
    with pytest.raises(ConfigError, match=rf"^{package}={package}=={message}"):
        check_versions()


@pytest.mark.parametrize("version", ["0.24.0", "0.27.1+cpu", "0.27.2rc1"])
def test_given_a_vllm_that_the_recipe_knows_when_checked_then_it_is_accepted(checkout, version):
    write_package(checkout / "vllm", "_version.py", f"__version__ = version = '{version}'\n")
    assert f"vllm=={version}" in check_versions()
