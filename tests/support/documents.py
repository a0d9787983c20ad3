"""The project's Markdown pages, parsed: what they set as code."""

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from markdown_it import MarkdownIt

from recipe.async_dapo_lab.plan.inputs import Inputs

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for folder in (".", "docs", "docs/evidence", "examples", "benchmarks", "recipe/async_dapo", "recipe/async_dapo_lab")
    for path in (ROOT / folder).glob("*.md")
)


class Page:
    """One page.

    Args:
        name: its path from the project's root.
    """

    def __init__(self, name: str) -> None:
        self.path = ROOT / name
        self.text = self.path.read_text()
        self._blocks = MarkdownIt("commonmark").enable("table").parse(self.text)

    @property
    def code(self) -> list[str]:
        """What stands between backticks."""
        tokens = (token for block in self._blocks for token in block.children or ())
        return [token.content for token in tokens if token.type == "code_inline"]

    @property
    def code_blocks(self) -> list[str]:
        return [token.content for token in self._blocks if token.type in ("code_block", "fence")]

    @property
    def commands(self) -> Iterator[tuple[str, ...]]:
        """Words of every command, in code blocks and between backticks, without variables set in front."""
        lines = "\n".join(self.code_blocks).replace("\\\n", " ").splitlines()
        for line in [*lines, *(" ".join(code.split()) for code in self.code)]:
            words = _words(line)
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words = words[1:]
            if words and words[0] in ("python", "bash", "pytest"):
                yield words


def _words(line: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(line, comments=True))
    except ValueError:  # an apostrophe: no command
        return ()


@cache
def page(name: str) -> Page:
    return Page(name)


@cache
def files() -> frozenset[str]:
    """Paths of the project's files and folders, and of verl's; folders have a slash at their end."""
    folders = ("assets", "benchmarks", "docs", "examples", "recipe", "requirements", "tests")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*")] + list(ROOT.glob("*"))
    verl = find_spec("verl")
    assert verl is not None and verl.origin is not None
    paths += Path(verl.origin).parent.rglob("*")
    return frozenset(f"{path}{'/' if path.is_dir() else ''}" for path in paths)


def arguments_of(module: str) -> set[str]:
    """Options that a module's command line has: those that its package adds to a parser."""
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None, f"no module {module}"
    file = Path(spec.origin)
    sources = file.parent.glob("*.py") if file.name == "__init__.py" else [file]
    names = {"--help"}
    for source in sources:
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
                names |= {name.value for name in node.args if isinstance(name, ast.Constant)}
    if module == "recipe.async_dapo_lab.plan":
        names |= {f"--{name.replace('_', '-')}" for name in Inputs.described()}
    return names


def arguments_of_script(script: str) -> set[str]:
    """Options that a shell script reads itself, or hands to the module that it runs."""
    text = (ROOT / script).read_text()
    modules = re.findall(r"python3? -m (recipe[\w.]+)", text)
    return set(re.findall(r"--[a-z-]+", text)).union(*map(arguments_of, modules))


@cache
def messages() -> str:
    """Every text in the recipe's code, a line each, with `...` for what is filled in."""
    lines = []
    for file in (ROOT / "recipe").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [str(part.value) if isinstance(part, ast.Constant) else "..." for part in node.values]
                lines.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                lines.append(re.sub(r"%[srd]", "...", node.value))
    return "\n".join(lines)
