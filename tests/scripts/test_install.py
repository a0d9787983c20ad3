"""What the installation does where pip does not find the CPU build of torch."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INDEX = "http://index.example/cpu"
# Makes a "virtual environment" whose pip knows torch from one index only, and notes its calls.
PYTHON = f"""#!/bin/sh
mkdir -p "$3/bin"
cat >"$3/bin/python" <<'PIP'
#!/bin/sh
echo "$*" >>"$CALLS"
case "$*" in
  *"--index-url {INDEX} torch=="* | *--requirement*) exit 0 ;;
esac
echo "No matching distribution found"
exit 1
PIP
chmod +x "$3/bin/python"
"""


@pytest.fixture
def install(tmp_path: Path):
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    calls = tmp_path / "calls"

    def run(**changes: str) -> tuple[int, str, list[str]]:
        """Exit status, output, and the calls of pip."""
        environment = {key: value for key, value in os.environ.items() if key != "TORCH_INDEX_URL"}
        command = ["bash", str(ROOT / "requirements" / "install.sh"), str(tmp_path / "venv")]
        environment |= {"PYTHON": str(python), "CALLS": str(calls)} | changes
        ended = subprocess.run(
            command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60
        )
        return ended.returncode, ended.stdout, calls.read_text().splitlines()

    return run


def test_given_no_cpu_build_when_installed_then_the_remedy_is_named_and_nothing_is_marked_as_done(install) -> None:
    for attempt in (1, 2):
        status, output, calls = install()
        assert status == 1 and len(calls) == attempt
        assert "No matching distribution found" in output and "set TORCH_INDEX_URL" in output


def test_given_an_index_when_installed_then_torch_comes_from_it_and_the_rest_from_the_configured_sources(
    install,
) -> None:
    status, _, calls = install(TORCH_INDEX_URL=INDEX)
    assert status == 0
    torch, rest = calls
    assert INDEX in torch and "--requirement" in rest and INDEX not in rest
    assert install(TORCH_INDEX_URL=INDEX)[2] == calls, "installed already"
