"""The documents say what the code says: files, commands, options, metrics and messages in them exist.

Links and headings are checked where the site is built, in `docs/build.sh`.
"""

import re
from collections.abc import Sequence
from importlib.util import find_spec

import pandas as pd
import pytest
from omegaconf import DictConfig, OmegaConf

from docs import generate
from docs.declared import metrics
from recipe.async_dapo.config.extensions import declared
from recipe.async_dapo.record.keys import PREFIX
from recipe.async_dapo_lab.rehearsal.options import WITH_REHEARSAL

from ..support.composed_runs import compose_run
from ..support.documents import PAGES, ROOT, arguments_of, arguments_of_script, files, messages, page

FILE_NAME = re.compile(r"[\w./-]+\.(py|sh|md|yaml|toml|txt|csv|png|json|jsonl|msgpack)|[\w./-]+/")
OPTION = re.compile(r"([a-z_0-9]+(?:\.[a-z_0-9]+)+)(?:=.*)?", re.DOTALL)
WRITTEN_BY_RUNS = {
    "outputs/",
    "config.yaml",
    "timeline.png",
    "config.json",
    "rehearsal.json",
    "report.html",
    "run.json",
    "steps.jsonl",
    "timeline.jsonl",
    "evaluation-step-8.json",
}
WRITTEN_BY_RUNS |= {
    "metrics.jsonl",
    "spans.jsonl",
    "lengths.jsonl",
    "calls.jsonl",
    "runs.csv",
    "curves.csv",
    "law.csv",
}
[_ROW] = re.findall(r"^\| `extensions/` \|.*", (ROOT / "recipe" / "async_dapo" / "README.md").read_text(), re.MULTILINE)
MISSING = {one for one in re.findall(r"`(\w+)/`", _ROW) if one != "extensions"} - declared().keys()
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"pages tell of what is not in this copy: {MISSING}")


@pytest.fixture(scope="module")
def composed() -> DictConfig:
    return compose_run([*WITH_REHEARSAL])


@pytest.mark.slow
def test_files_commands_options_and_metrics_that_pages_name_exist(composed: DictConfig) -> None:
    wrong = {
        name: [*files_in(name), *commands_in(name), *options_in(name, composed), *metrics_in(name)] for name in PAGES
    }
    assert len(PAGES) > 20 and {name: named for name, named in wrong.items() if named} == {}


def files_in(name: str) -> set[str]:
    """That do not exist; the same of commands, options and metrics below."""
    named = {code for code in page(name).code if FILE_NAME.fullmatch(code) and not code.startswith(PREFIX)}
    named = {code for code in named if "NAME" not in code and "FOLDER" not in code}  # stand for any
    return {file for file in named - WRITTEN_BY_RUNS if not any(path.endswith(f"/{file}") for path in files())}


def commands_in(name: str) -> set[str]:
    return {" ".join(words) for words in page(name).commands if not can_be_run(*words)}


def can_be_run(program: str, *words: str) -> bool:
    if program == "pytest":
        return (ROOT / words[0]).exists()
    if program == "bash":
        return (ROOT / words[0]).is_file() and are_known(words[1:], arguments_of_script(words[0]))
    if words[0] == "-m":
        return find_spec(words[1]) is not None and are_known(words[2:], arguments_of(words[1]))
    return (ROOT / words[0]).is_file()


def are_known(words: Sequence[str], known: set[str]) -> bool:
    return {word for word in words if word.startswith("--") and word != "--"} <= known


def options_in(name: str, composed: DictConfig) -> set[str]:
    words = [*page(name).code, *(word for command in page(name).commands for word in command)]
    keys = {match[1] for word in words if (match := OPTION.fullmatch(word)) and not FILE_NAME.fullmatch(word)}
    return {key for key in keys if key.split(".")[0] in composed and not _has(composed, key)}


def _has(config: DictConfig, key: str) -> bool:
    parent, _, last = key.rpartition(".")
    node = OmegaConf.select(config, parent)
    return isinstance(node, DictConfig) and last in node


def metrics_in(name: str) -> set[str]:
    named = {code.removeprefix(PREFIX) for code in page(name).code if code.startswith(PREFIX)} - {"*"}
    known = "\n".join(metrics())
    as_pattern = {metric: re.escape(metric).replace(re.escape("*"), "[0-9a-z_]+") for metric in named}
    return {metric for metric, pattern in as_pattern.items() if not re.search(f"^{pattern}$", known, re.MULTILINE)}


def test_a_check_of_generated_parts_changes_nothing_and_names_the_page_that_is_not_up_to_date(monkeypatch) -> None:
    monkeypatch.setattr(generate, "PARTS", {"docs/get_started.md": {"step lines": lambda: "    another\n"}})
    before = page("docs/get_started.md").text
    with pytest.raises(SystemExit, match=re.escape("docs/get_started.md")):
        generate.main(only_checks=True)
    assert (ROOT / "docs/get_started.md").read_text() == before


def test_every_wait_has_a_limit_and_names_a_test_that_exists() -> None:
    waits = pd.read_csv(ROOT / "tests" / "waits.csv")
    assert len(waits) > 20 and waits.notna().all(axis=None)
    named = {(wait, name) for wait, tests in waits[["wait_for", "test"]].itertuples(index=False)
             for name in re.findall(r"[\w/]+\.py", tests)}  # fmt: skip
    assert set(waits["wait_for"]) == {wait for wait, _ in named}
    assert not [name for _, name in named if not any(path.endswith(f"/{name}") for path in files())]


def test_a_limit_that_a_user_sets_is_on_the_page_of_promises() -> None:
    limits = " ".join(pd.read_csv(ROOT / "tests" / "waits.csv")["limit"])
    named = set(re.findall(r"[\w.]*timeout_s", limits, re.IGNORECASE))
    assert len(named) > 4
    table = page("docs/reliability.md").text.partition("## Every wait ends")[2].partition("\n## ")[0]
    assert not [name for name in named if name not in table]


@pytest.mark.slow
def test_messages_in_the_troubleshooting_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| `(.*?)` \|", page("docs/troubleshooting.md").text, re.MULTILINE)
    assert len(rows) > 20
    assert not [message for message in rows if message not in messages()]


def test_the_readme_is_read_in_a_few_minutes_and_has_its_parts_in_the_order_that_a_reader_needs() -> None:
    text = re.sub(r"<!--.*?-->", "", page("README.md").text)
    words = re.sub(r"\]\([^)]*\)", "]", text).split()
    assert sum(bool(re.search(r"\w", word)) for word in words) <= 900
    rules = re.findall(r"^\|[-| ]+\|$", text, re.MULTILINE)
    assert rules and all(rule.count("|") <= 5 for rule in rules), "a table of more than four columns"
    parts = [
        "A recipe for verl",
        "![Engines over time",
        "**Not done yet:**",
        "git clone",
        "Take it when",
        "Leave it when",
    ]
    places = [text.index(part) for part in [*parts, "| Simulated cluster and job |"]]
    assert places == sorted(places)


def test_every_page_is_on_the_list_of_pages() -> None:
    listed = set(re.findall(r"\]\(([^)#]+)", page("docs/README.md").text))
    pages = {name.removeprefix("docs/") for name in PAGES if name.startswith("docs/")}
    assert pages - {"README.md"} <= listed


def test_code_names_pages_that_exist() -> None:
    folders = ("recipe", "benchmarks", "docs", "examples", "tests")
    files = [file for folder in folders for kind in ("py", "sh", "yaml") for file in (ROOT / folder).rglob(f"*.{kind}")]
    named = {(file.name, name) for file in files for name in re.findall(r"\bdocs/[\w/]+\.md", file.read_text())}
    assert len(named) > 10
    assert not [(file, name) for file, name in named if not (ROOT / name).is_file()]
