"""The errors that `tests.mutants` puts into the code: one each, in a function, the same for the same seed."""

import ast
import difflib

import pytest

from tests.mutants.__main__ import FOLDERS, PROBE, ROOT
from tests.mutants.draw import draw, mutant_of, places_in, probed

SOURCE = '''
def outer(a, b=1):
    """Not a mutant: 'a < b'."""
    total = 0

    @decorated
    def inner():
        return a < b and not a

    total += a - 1
    logger.info("kept")
    return inner() if a in (b,) else total
'''


def test_a_small_function_has_each_kind_of_error_once_in_its_place(tmp_path) -> None:
    file = tmp_path / "source.py"
    file.write_text(SOURCE)
    places = places_in(file)
    mutants = [mutant_of(tmp_path, file, place, *what) for place, what in places.items()]
    found = {(mutant.kind, mutant.function, mutant.new) for mutant in mutants}
    assert found == {
        ("number", "outer", "def outer(a, b=2):"),
        ("number", "outer", "total = 1"),
        ("comparison", "inner", "return a <= b and not a"),
        ("and, or", "inner", "return a < b or not a"),
        ("not", "inner", "return a < b and a"),
        ("statement", "outer", "pass"),
        ("plus, minus", "outer", "total += a + 1"),
        ("number", "outer", "total += a - 2"),
        ("comparison", "outer", "return inner() if a not in (b,) else total"),
    }
    assert probed(SOURCE, dict(enumerate(mutants)), PROBE).count("CALLED") == len(mutants)


@pytest.mark.slow
def test_errors_of_the_recipe_differ_from_it_in_one_place_and_are_those_of_the_seed() -> None:
    count = 3 * len(FOLDERS)
    mutants = draw(ROOT, FOLDERS, count, seed=7)
    assert [len([one for one in mutants if one.file.startswith(folder)]) for folder in FOLDERS] == [3] * len(FOLDERS)
    assert mutants == draw(ROOT, FOLDERS, count, seed=7) != draw(ROOT, FOLDERS, count, seed=8)
    for mutant in mutants:
        ast.parse(mutant.text)
        changes = difflib.SequenceMatcher(None, (ROOT / mutant.file).read_text().split("\n"), mutant.text.split("\n"))
        assert len([change for change in changes.get_opcodes() if change[0] != "equal"]) == 1
