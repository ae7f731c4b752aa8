"""A hook of mkdocs: pages outside docs/ on the site, and links between all pages.

The documents are written for GitHub, with links relative to the tree. On the site the pages of
docs/ are at the top, and the others, such as seeds/ and CONTRIBUTING.md, beside them. A link to a
file that is no page of the site becomes plain text.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "seeds")
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
_FENCED = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are outside docs/."""
    for name in PAGES:
        path = ROOT / name
        for page in [path] if path.is_file() else sorted(path.rglob("*.md")):
            uri = page.relative_to(ROOT).as_posix()
            files.append(File.generated(config, uri, abs_src_path=str(page)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Replace the links of a page by those of the site."""
    parts = _FENCED.split(markdown)
    uri = page.file.src_uri
    # Every other part is a fenced block.
    parts[::2] = [_LINK.sub(lambda found: _replaced(found, uri, files), p) for p in parts[::2]]
    return "".join(parts)


def _replaced(found: re.Match[str], uri: str, files: Files) -> str:
    text, target, anchor = found[1], found[2], found[3] or ""
    here = uri if _is_outside(uri) else f"docs/{uri}"
    path = normpath(PurePosixPath(here).parent / target)
    if path == "README.md":
        path = "docs/index.md"
        anchor = ""
    index = f"{path}/README.md" if (ROOT / path).is_dir() else path
    there = index.removeprefix("docs/")
    if files.get_file_from_path(there) is None:
        return text if (ROOT / path).exists() else found[0]
    return f"[{text}]({relpath(there, PurePosixPath(uri).parent)}{anchor})"


def _is_outside(uri: str) -> bool:
    return any(uri == name or uri.startswith(f"{name}/") for name in PAGES)
