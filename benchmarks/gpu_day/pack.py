"""Packs what a machine with one H100 and no network lacks: numbered parts of one archive, with their checksums.

bash benchmarks/gpu_day/pack.sh [FOLDER]        (default outputs/gpu_day)

The machine is described by `machine_packages.txt`; `unpack.sh` is the other side. Versions are those of
`requirements/gpu_versions.txt`, with vLLM's CUDA wheel. What no run on one Hopper GPU needs is left out: whole
packages, files by pattern, and the kernels of other architectures inside of shared libraries.
"""

import argparse
import re
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

HERE = Path(__file__).parent
REQUIREMENTS = HERE.parents[1] / "requirements"
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
PYTHON = "3.12"
GLIBC = (17, 24, 26, 27, 28, 31, 34, 35)  # manylinux_2_N that the machine can load
PART_BYTES = 55 << 20
# Of the names of files that it reads. Blocks are compressed, and read back, by a core each.
PIPELINE = """
set -euo pipefail
tar --create --directory "$0" --files-from - | xz "-$2" --threads=0 --block-size=32MiB |
  split --bytes="$1" --numeric-suffixes=1 - part_
sha256sum part_* >SHA256SUMS
"""
MACHINE, NOT_NEEDED = HERE / "machine_packages.txt", HERE / "not_needed_packages.txt"
PACKED_ANYWAY = {"tokenizers", "transformers"}  # the machine's are newer than verl allows
ADDED = ("vllm==0.24.0",)
SOURCE_ONLY = ("antlr4-python3-runtime",)  # pure Python without a wheel in the index
NO_FILES = (
    "*.pyi",
    "*/RECORD",
    "*/tests/*",
    "bin/*",
    "ray/dashboard/client/*",
    "ray/jars/*",
    "ray/rllib/*",
    "ray/_private/runtime_env/agent/thirdparty_files/*/tests/*",
    "vllm/vllm-rs",
    "vllm/third_party/*.h",
    "vllm/third_party/*.hpp",
    "vllm/third_party/*.cuh",
    "vllm/third_party/deep_gemm/_C.cpython-31[0134]-*",
    "vllm/vllm_flash_attn/_vllm_fa2_C*",  # kernels of Ampere; Hopper has FlashAttention 3's
    "vllm/_qutlass_C*",  # kernels of Blackwell
)

# A fat binary in a shared library: a header, then images, each with a header of its own. nvcc's own tool prunes
# object files alone, so images of other architectures are overwritten by zeros, which compress to nothing. Offsets and
# sizes stay, and the driver picks an image by its header.
FATBIN_MAGIC = struct.pack("<IHH", 0xBA55ED50, 1, 16)
PTX, CUBIN = 1, 2
HOPPER = 90


def images(library: bytes) -> Iterator[list[tuple[int, int, int, int]]]:
    """Each fat binary's images: kind, architecture, where its bytes begin, and how many these are."""
    at = library.find(FATBIN_MAGIC)
    while at >= 0:
        end = at + 16 + struct.unpack_from("<Q", library, at + 8)[0]
        found = []
        image = at + 16
        while image < end <= len(library):
            kind, _, header, size = struct.unpack_from("<HHIQ", library, image)
            found.append((kind, struct.unpack_from("<I", library, image + 28)[0], image + header, size))
            image += header + size
        yield found
        at = library.find(FATBIN_MAGIC, max(end, at + 16) if found else at + 16)


def prune(library: bytes) -> bytes:
    """The library with only the images that a Hopper GPU loads: its own, or else the newest code it can compile."""
    pruned = bytearray(library)
    for fat_binary in images(library):
        own = any(kind == CUBIN and architecture == HOPPER for kind, architecture, *_ in fat_binary)
        for kind, architecture, start, size in fat_binary:
            needed = kind == CUBIN and architecture == HOPPER if own else kind == PTX and architecture <= HOPPER
            if not needed:
                pruned[start : start + size] = bytes(size)
    return bytes(pruned)


def distribution(requirement: str) -> str:
    """Its name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", requirement.partition("==")[0].strip()).lower()


def names(file: Path) -> set[str]:
    """Of distributions, a line each, as `pip list --format=freeze` and package indexes write them."""
    return {distribution(line) for line in file.read_text("utf-8").splitlines() if line and not line.startswith("#")}


def requirements() -> list[str]:
    """What the machine lacks, each with its version."""
    lines: dict[str, str] = {}
    for name in ("cpu.txt", "gpu_versions.txt"):
        pins = (line for line in (REQUIREMENTS / name).read_text("utf-8").splitlines() if "==" in line)
        lines |= {distribution(pin): pin for pin in pins if not pin.startswith("#")}
    left_out = (names(MACHINE) - PACKED_ANYWAY) | names(NOT_NEEDED)
    return sorted(pin for name, pin in lines.items() if name not in left_out) + list(ADDED)


def install(folder: Path) -> None:
    """Installs the packages for the machine's Python and C library, without what it has."""
    names = ["2014", "1", *(f"_2_{minor}" for minor in GLIBC)]
    platforms = [f"--platform=manylinux{name}_x86_64" for name in names]
    machine = ["--only-binary=:all:", f"--python-version={PYTHON}", "--implementation=cp", *platforms]
    sources = [pin for pin in requirements() if distribution(pin) in SOURCE_ONLY]
    for how, pins in ((machine, [pin for pin in requirements() if pin not in sources]), ([], sources)):
        command = [*PIP, "install", "--no-deps", "--no-compile", f"--target={folder}", *how, *pins]
        subprocess.run(command, check=True)


def is_needed(name: str) -> bool:
    """Whether a run on one Hopper GPU needs this file, a path inside the folder of packages."""
    return not any(fnmatch(name, pattern) for pattern in NO_FILES)


def shrink(folder: Path) -> None:
    """Removes the files and the kernels that are not needed."""
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        if not is_needed(str(path.relative_to(folder))):
            path.unlink()
        elif ".so" in path.name and FATBIN_MAGIC in (library := path.read_bytes()):
            path.write_bytes(prune(library))


def archive(packages: Path, folder: Path, *, level: int = 6) -> list[Path]:
    """Parts of the compressed archive, and their checksums in `SHA256SUMS`.

    Args:
        level: of the compression, 0 (fast) to 9.
    """
    for old in folder.glob("part_*"):
        old.unlink()
    files = sorted((path for path in packages.rglob("*") if path.is_file()), key=lambda path: (path.suffix, path))
    names = "".join(f"{path.relative_to(packages)}\n" for path in files)
    command = ["bash", "-c", PIPELINE, str(packages.resolve()), str(PART_BYTES), str(level)]
    subprocess.run(command, cwd=folder, input=names, text=True, check=True)
    return sorted(folder.glob("part_*"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    began = time.perf_counter()
    packages = folder / "packages"
    shutil.rmtree(packages, ignore_errors=True)
    packages.mkdir(parents=True)
    for step in (install, shrink):
        step(packages)
        subprocess.run(["du", "--summarize", "--apparent-size", "--block-size=MiB", packages], check=True)
    parts = archive(packages, folder)
    subprocess.run(["ls", "-l", *parts], check=True)
    print(f"{len(requirements())} packages in {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
