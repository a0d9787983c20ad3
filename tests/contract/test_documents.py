"""The documents say what the code says: links, files, commands, options, metrics and messages in them exist."""

import re
from importlib.util import find_spec

import pytest
from omegaconf import DictConfig, OmegaConf

from docs.generate import PARTS, up_to_date
from recipe.async_dapo.training.metric_names import METRICS, PREFIX

from ..support.composed_runs import compose_run
from ..support.documents import PAGES, ROOT, arguments_of, arguments_of_script, files, messages, page

FILE_NAME = re.compile(r"[\w./-]+\.(py|sh|md|yaml|toml|txt|csv|png|json|jsonl|msgpack)|[\w./-]+/")
OPTION = re.compile(r"([a-z_0-9]+(?:\.[a-z_0-9]+)+)(?:=.*)?", re.DOTALL)
WRITTEN_BY_RUNS = {
    "training.png",
    "outputs/",
    "config.yaml",
    "timeline.png",
    "config.json",
    "summary.json",
    "rehearsal.json",
    "report.html",
    "run.json",
    "steps.jsonl",
    "timeline.json",
    "timeline.jsonl",
}
WRITTEN_BY_RUNS |= {"metrics.jsonl", "engines.jsonl", "phases.jsonl", "lengths.jsonl", "runs.csv"}
README_LINES, README_WORDS, RECIPE_README_LINES = 170, 1700, 60

every_page = pytest.mark.parametrize("name", PAGES)


@pytest.fixture(scope="module")
def composed() -> DictConfig:
    return compose_run([])


@every_page
def test_links_lead_to_files_and_headings_that_exist(name: str) -> None:
    for link in page(name).links:
        path, _, anchor = link.partition("#")
        target = page(name).path.parent / path if path else page(name).path
        assert target.exists(), f"{name}: no file for the link {link}"
        if anchor:
            assert anchor in page(str(target.resolve().relative_to(ROOT))).anchors, f"{name}: no heading for {link}"


@every_page
def test_files_that_are_named_exist(name: str) -> None:
    named = {code for code in page(name).code if FILE_NAME.fullmatch(code) and not code.startswith(PREFIX)}
    missing = {file for file in named - WRITTEN_BY_RUNS if not any(path.endswith(f"/{file}") for path in files())}
    assert not missing, f"{name} names files that do not exist"


@every_page
def test_commands_can_be_run(name: str) -> None:
    for program, *words in page(name).commands:
        if program == "python":
            if words[0] != "-m":
                assert (ROOT / words[0]).is_file(), f"{name}: no script {words[0]}"
                continue
            assert find_spec(words[1]) is not None, f"{name}: no module {words[1]}"
            known, rest = arguments_of(words[1]), words[2:]
        elif program == "bash":
            assert (ROOT / words[0]).is_file(), f"{name}: no script {words[0]}"
            known, rest = arguments_of_script(words[0]), words[1:]
        else:
            assert (ROOT / words[0]).exists(), f"{name}: no tests at {words[0]}"
            known, rest = set(), []
        unknown = {word for word in rest if word.startswith("--") and word != "--"} - known
        assert not unknown, f"{name}: {' '.join(words)}"


@every_page
def test_options_that_are_named_exist(name: str, composed: DictConfig) -> None:
    words = [*page(name).code, *(word for command in page(name).commands for word in command)]
    keys = {match[1] for word in words if (match := OPTION.fullmatch(word)) and not FILE_NAME.fullmatch(word)}
    unknown = {key for key in keys if key.split(".")[0] in composed and not _has(composed, key)}
    assert not unknown, f"{name} names options that do not exist"


def _has(config: DictConfig, key: str) -> bool:
    parent, _, last = key.rpartition(".")
    node = OmegaConf.select(config, parent)
    return isinstance(node, DictConfig) and last in node


@every_page
def test_metrics_that_are_named_exist(name: str) -> None:
    named = {code.removeprefix(PREFIX) for code in page(name).code if code.startswith(PREFIX)}
    known = "\n".join(METRICS)
    unknown = {
        metric
        for metric in named
        if not re.search(rf"^{re.escape(metric).replace(re.escape('*'), '[0-9a-z_]+')}$", known, re.MULTILINE)
    }
    assert not unknown - {"*"}, f"{name} names metrics that do not exist"


@pytest.mark.parametrize("name", PARTS)
def test_generated_parts_are_up_to_date(name: str) -> None:
    assert up_to_date(name) == page(name).text, "run: python -m docs.generate"


def test_every_option_and_metric_has_a_meaning() -> None:
    for name in ("docs/options.md", "docs/metrics.md"):
        rows = re.findall(r"^\| `.*\|$", page(name).text, re.MULTILINE)
        assert len(rows) > 15 and all(cell.strip() for row in rows for cell in row.strip("|").split(" | "))


def test_every_wait_names_its_test() -> None:
    table = page("docs/reliability.md").text.partition("## Every wait\n\n")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    assert len(rows) > 20
    assert not [row for row in rows if len(row) != 5 or not re.search(r"`[\w/]*test_\w+\.py`", row[-1])]


def test_messages_in_the_troubleshooting_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| `(.*?)` \|", page("docs/troubleshooting.md").text, re.MULTILINE)
    assert len(rows) > 20
    assert not [message for message in rows if message not in messages()]


def test_pages_that_are_read_first_are_short() -> None:
    readme = page("README.md").text
    assert len(readme.splitlines()) <= README_LINES
    assert len(readme.split()) <= README_WORDS
    assert len(page("recipe/async_dapo/README.md").text.splitlines()) <= RECIPE_README_LINES
