#!/usr/bin/env python3
"""A preprocessor of mdBook: links that lead out of docs/ become links to the repository (`preprocessor.repository.url` of
book.toml), or, without an address of it, name the file."""

import json
import posixpath
import re
import sys

LINK = re.compile(r"\[([^\]]*)\]\(([^()\s]+)\)")


def relinked(text, page, url):
    """A page with its links, but for those in blocks of code, which begin and end with a line of backquotes."""
    folder = posixpath.join("docs", posixpath.dirname(page))

    def replace(match):
        label, target = match.groups()
        if "://" in target or target.startswith(("#", "mailto:")):
            return match.group()
        path = posixpath.normpath(posixpath.join(folder, target.split("#")[0]))
        if path.startswith("docs/"):
            # mdBook makes index.html of a README.md, and leaves links to it as they are.
            return re.sub(r"README\.md(?=[)#])", "index.md", match.group())
        return f"[{label}]({url.rstrip('/')}/{path})" if url else f"{label} (`{path}`)"

    parts = re.split(r"(^ *```.*?^ *```[^\n]*$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if index % 2 else LINK.sub(replace, part) for index, part in enumerate(parts))


def chapters(items):
    for item in items:
        chapter = item.get("Chapter") if isinstance(item, dict) else None
        if chapter:
            yield chapter
            yield from chapters(chapter["sub_items"])


def main():
    if sys.argv[1:2] == ["supports"]:
        return
    context, book = json.load(sys.stdin)
    settings = context["config"].get("preprocessor", {}).get("repository", {})
    for chapter in chapters(book.get("items") or book.get("sections") or []):
        if chapter.get("path"):
            chapter["content"] = relinked(chapter["content"], chapter["path"], settings.get("url", ""))
    json.dump(book, sys.stdout)


if __name__ == "__main__":
    main()
