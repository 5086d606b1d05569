"""Check that all links in a folder of HTML pages lead to existing files and anchors."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

LINK_ATTRIBUTES = {"a": "href", "link": "href", "img": "src", "script": "src", "iframe": "src", "source": "src"}


class LinkParser(HTMLParser):
    """The links of a page, its anchors, and its images without alt text."""

    def __init__(self, text: str):
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.images_without_alt: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        self.places |= {found[name] for name in ("id", "name") if found.get(name)}
        if link := found.get(LINK_ATTRIBUTES.get(tag, "")):
            self.links.append(link)
        if tag == "img" and not (found.get("alt") or "").strip():
            self.images_without_alt.append((found.get("src") or "")[:80])


def broken_links(folder: Path) -> list[str]:
    """Return links that lead nowhere or out of the folder, and images without alt text, one per line.

    Links to other servers are not checked.
    """
    folder = folder.resolve()
    paths = [path for path in sorted(folder.rglob("*.html")) if "_static" not in path.parts]  # a theme's templates are there
    pages = {path: LinkParser(path.read_text(encoding="utf-8", errors="replace")) for path in paths}
    found = []
    for path, page in pages.items():
        name = path.relative_to(folder)
        found += [f"{name}: an image without alt text: {source}" for source in page.images_without_alt]
        for link in page.links:
            address, place = urldefrag(link)
            parts = urlsplit(address)
            if parts.scheme in ("http", "https", "mailto", "data") or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            known = pages.get(target)
            outside = not target.is_relative_to(folder) or parts.scheme or parts.path.startswith("/")
            if outside or not target.exists() or (place and known and unquote(place) not in known.places):
                found.append(f"{name}: {link}")
    return found
