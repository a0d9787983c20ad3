"""Package indexes in folders, with packages that hold nothing, for tests of the installation."""

import importlib.metadata
import zipfile
from pathlib import Path


def add_package(index: Path, name: str, version: str) -> None:
    """An empty package."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    _add_wheel(index, name, f"{name}-{version}-py3-none-any.whl", files)


def add_installed_package(index: Path, name: str) -> None:
    """One of the packages that this interpreter has, scripts included, packed again."""
    package = importlib.metadata.distribution(name)
    folder = Path(str(package.locate_file("")))
    data = f"{name}-{package.version}.data/scripts"
    files = {}
    for file in package.files or []:
        path = Path(str(file))
        if path.suffix != ".pyc":
            in_wheel = f"{data}/{path.name}" if path.parent.name == "bin" else path.as_posix()
            files[in_wheel] = (folder / path).read_bytes()
    _add_wheel(index, name, f"{name}-{package.version}-py3-none-any.whl", files)


def _add_wheel(index: Path, name: str, file: str, files: dict[str, bytes]) -> None:
    folder = index / name
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / file, "w") as wheel:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path)
            entry.external_attr = (0o100755 if "/scripts/" in path else 0o100644) << 16
            wheel.writestr(entry, content)
    links = "".join(f'<a href="{wheel.name}">{wheel.name}</a>' for wheel in sorted(folder.glob("*.whl")))
    (folder / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
