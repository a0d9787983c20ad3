"""A hook of mkdocs: the repository's other pages, its figures and its data beside the pages of docs/.

A page links as the repository lies (`../assets/plan/frontier.png`), which is right where the files are read. On the
site everything under docs/ moves to the root, and README.md becomes its home.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
MOVED = {"README.md": "index.md", "docs/README.md": "pages.md"}
PAGES = (
    "README.md",
    "docs/README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "benchmarks/README.md",
    "benchmarks/TARGETS.md",
    "recipe/async_dapo/README.md",
    "recipe/async_dapo_lab/README.md",
)
_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    if (own := files.get_file_from_path("README.md")) is not None:
        files.remove(own)
    linked = {target for page in _pages() for target in _targets(page)}
    for path in sorted({*PAGES, *linked}):
        if (ROOT / path).is_file() and not (path.startswith("docs/") and path not in MOVED):
            files.append(File.generated(config, _on_site(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    source = next((path for path, place in MOVED.items() if place == page.file.src_uri), None)
    source = source or (page.file.src_uri if page.file.src_uri in PAGES else f"docs/{page.file.src_uri}")

    def relinked(match: re.Match[str]) -> str:
        if "://" in match[2]:
            return match[0]
        path = _on_site(_resolved(source, match[2]))
        return match[1] + posixpath.relpath(path, posixpath.dirname(page.file.src_uri) or ".") + match[3]

    return _LINK.sub(relinked, markdown)


def _pages() -> list[str]:
    return [*PAGES, *(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]


def _targets(page: str) -> set[str]:
    links = {match[2] for match in _LINK.finditer((ROOT / page).read_text())}
    return {_resolved(page, link) for link in links if "://" not in link}


def _resolved(page: str, link: str) -> str:
    """The file that a link of a page means, from the root of the repository."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))


def _on_site(path: str) -> str:
    return MOVED.get(path, path.removeprefix("docs/"))
