"""Small errors in the recipe's code, drawn by chance: a flipped comparison, `and` for `or`, `+` for `-`, a `not` left
out, a removed statement, a number off by one.
"""

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

_FLIPPED: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
_LOGS = ("logger.", "log_phase(")  # what a removed one changes is in no result


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """`text` is the whole file with the error in it; `line` lies in `function`."""

    file: str
    kind: str
    function: str
    line: int
    old: str
    new: str
    text: str


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes of a file, and what they are replaced by."""

    start: int
    end: int
    new: str


def draw(root: Path, folders: list[str], count: int, *, seed: int) -> list[Mutant]:
    """As many of each folder as of the others, and each file about as often as it has places for one.

    Args:
        folders: from `root` on.
    """
    rng = random.Random(seed)
    drawn: list[Mutant] = []
    for number, folder in enumerate(folders):
        files = sorted((root / folder).rglob("*.py"))
        places = [(file, place, what) for file in files for place, what in places_in(file).items()]
        rng.shuffle(places)
        wanted = len(drawn) + count // len(folders) + (number < count % len(folders))
        for file, place, what in places:
            if len(drawn) == wanted:
                break
            if (mutant := mutant_of(root, file, place, *what)) is not None:
                drawn.append(mutant)
    return drawn


def places_in(file: Path) -> dict[Place, tuple[str, str, int]]:
    """Where it may be changed, with the kind of error, the innermost function and the line."""
    code = file.read_bytes()
    starts = [0, *accumulate(len(line) + 1 for line in code.split(b"\n"))]
    found: dict[Place, tuple[str, str, int]] = {}
    for function in ast.walk(ast.parse(code)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):  # outer ones come first
            for kind, line, start, end, new in _changes(function, code, starts):
                found[Place(start, end, new)] = (kind, function.name, line)
    return found


def mutant_of(root: Path, file: Path, place: Place, kind: str, function: str, line: int) -> Mutant | None:
    """None if the change is no Python, or none."""
    code = file.read_bytes()
    text, changed = code.decode(), (code[: place.start] + place.new.encode() + code[place.end :]).decode()
    try:
        ast.parse(changed)
    except SyntaxError:
        return None
    old, new = (each.split("\n")[line - 1].strip() for each in (text, changed))
    name = file.relative_to(root).as_posix()
    is_one = changed != text
    return (
        Mutant(file=name, kind=kind, function=function, line=line, old=old, new=new, text=changed) if is_one else None
    )


def _changes(function: ast.AST, code: bytes, starts: list[int]) -> Iterator[tuple[str, int, int, int, str]]:
    """Kind, line, the bytes that are replaced, and what by."""

    def at(line: int, column: int) -> int:
        return starts[line - 1] + column

    def between(left: ast.expr, right: ast.expr, old: str, new: str) -> Iterator[tuple[int, int, str]]:
        assert left.end_lineno is not None and left.end_col_offset is not None
        start, end = at(left.end_lineno, left.end_col_offset), at(right.lineno, right.col_offset)
        operator = code[start:end].decode()
        if old in operator:
            yield start, end, operator.replace(old, new, 1)

    def whole(node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset)

    for node in ast.walk(function):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            old, new = _FLIPPED[type(node.ops[0])]
            for start, end, text in between(node.left, node.comparators[0], old, new):
                yield "comparison", node.lineno, start, end, text
        elif isinstance(node, ast.BoolOp):
            old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            for start, end, text in between(*node.values[:2], old, new):
                yield "and, or", node.lineno, start, end, text
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            old, new = ("+", "-") if isinstance(node.op, ast.Add) else ("-", "+")
            for start, end, text in between(node.left, node.right, old, new):
                yield "plus, minus", node.lineno, start, end, text
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            start, _ = whole(node)
            yield "not", node.lineno, start, whole(node.operand)[0], ""
        elif isinstance(node, ast.Expr | ast.AugAssign):
            start, end = whole(node)
            is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if not is_text and not any(log in code[start:end].decode() for log in _LOGS):
                yield "statement", node.lineno, start, end, "pass"
        elif isinstance(node, ast.Constant) and type(node.value) is int and node.value in (0, 1, 2):
            start, end = whole(node)
            if code[start:end].decode() == str(node.value):
                yield "number", node.lineno, start, end, str(node.value + 1)


def probed(text: str, mutants: dict[int, Mutant], probe: str) -> str:
    """The file with calls of `probe`, with the mutant's number, where its function begins."""
    lines = text.split("\n")
    probes: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = next((one for one in node.body if not _is_docstring(one)), node.body[0])
            line = min([first.lineno, *(one.lineno for one in getattr(first, "decorator_list", ()))])
            for number, mutant in mutants.items():
                inside = node.lineno <= mutant.line <= (node.end_lineno or node.lineno)
                if node.name == mutant.function and inside and line > node.lineno:
                    probes.append((line - 1, f"{' ' * first.col_offset}{probe}({number})"))
    for index, call in sorted(probes, reverse=True):
        lines.insert(index, call)
    return "\n".join(lines)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
