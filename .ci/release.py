"""Prepare a checkout for a package index: where the project is, and the README's links as they have to be there.

    python .ci/release.py https://HOST/OWNER/NAME v0.1.0

The address is not in the repository: the release workflow knows it. Refuses a tag that is not this version.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(!?)(\[[^\]]*\])\((?![a-z]+:|#)([^)\s]+)\)")
EXTRAS = "\n[project.optional-dependencies]\n"


def absolute(text: str, address: str, tag: str) -> str:
    """Make every relative link absolute, pictures as the files themselves."""

    def replaced(match: re.Match[str]) -> str:
        picture, label, path = match.groups()
        return f"{picture}{label}({address}/{'raw' if picture else 'blob'}/{tag}/{path})"

    return LINK.sub(replaced, text)


def with_urls(project: str, address: str) -> str:
    """Add the project's addresses to the text of pyproject.toml."""
    urls = {"Repository": "", "Documentation": "/tree/main/docs", "Issues": "/issues"}
    urls["Changelog"] = "/blob/main/CHANGELOG.md"
    table = "".join(f'{name} = "{address}{path}"\n' for name, path in urls.items())
    before, _, after = project.partition(EXTRAS)
    return f"{before}\n[project.urls]\n{table}{EXTRAS}{after}"


def main(address: str, tag: str) -> None:
    """Change README.md and pyproject.toml in place."""
    project, readme = ROOT / "pyproject.toml", ROOT / "README.md"
    text = project.read_text(encoding="utf-8")
    version = tomllib.loads(text)["project"]["version"]
    if tag != f"v{version}":
        raise SystemExit(f"The tag {tag} is not v{version}, the version of pyproject.toml.")
    project.write_text(with_urls(text, address), encoding="utf-8")
    readme.write_text(absolute(readme.read_text(encoding="utf-8"), address, tag), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
