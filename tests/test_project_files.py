"""Files for whoever works on the project: workflows run what is there, the changelog is of this version."""

import re
import runpy
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.support.shared import shared_part

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_workflows_skip_tests_whose_data_the_repository_does_not_have(file):
    jobs = yaml.safe_load(file.read_text(encoding="utf-8"))["jobs"].values()
    tested = [step for job in jobs for step in job["steps"] if re.search(r"\.ci/run|pytest", step.get("run", ""))]
    assert all(step.get("env", {}).get("CI") == "false" for step in tested)
    assert bool(tested) == (file.stem in ("ci", "nightly"))
    text = file.read_text(encoding="utf-8")
    assert text.count("The evaluation data are not in the repository") == text.count('CI: "false"') == len(tested)


@pytest.mark.parametrize(("value", "outcome"), [("true", pytest.fail.Exception), ("false", pytest.skip.Exception)])
def test_missing_data_fail_in_ci_and_skip_elsewhere(value, outcome, tmp_path, monkeypatch):
    monkeypatch.setenv("CI", value)
    with pytest.raises(outcome, match="data"):
        shared_part("data", tmp_path)
    (tmp_path / "data").mkdir()
    assert shared_part("data", tmp_path) == tmp_path / "data"


def test_the_lock_has_the_pins_of_the_tests_with_hashes_and_names_no_place():
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    found = dict(re.findall(r"^([\w.-]+)==(\S+) \\\n(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+", text, re.MULTILINE))
    assert len(found) == len(re.findall(r"^\w", text, re.MULTILINE))  # every one has hashes
    assert "://" not in text

    def plain(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    pinned = {plain(name): version for name, version in pins.items()}
    assert {name: pinned[plain(name)] for name in found} == found
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = needed["dependencies"] + needed["optional-dependencies"]["cpu"]
    names = {plain(re.match(r"[\w.-]+", line)[0]) for line in wanted}
    assert names - {plain(name) for name in found} == {"torch"}


def test_workflows_write_nothing_and_upload_without_a_secret():
    for file in WORKFLOWS:
        workflow = yaml.safe_load(file.read_text(encoding="utf-8"))
        assert workflow["permissions"] == {"contents": "read"}
        assert "secrets." not in file.read_text(encoding="utf-8")
        extra = [job["permissions"] for job in workflow["jobs"].values() if "permissions" in job]
        assert extra == ([{"id-token": "write"}] if file.stem == "release" else [])


def test_a_release_says_where_the_project_is():
    release = runpy.run_path(str(ROOT / ".ci" / "release.py"))
    place, tag = "https://host.example/owner/name", "v0.1.0"
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    before, after = tomllib.loads(text), tomllib.loads(release["with_urls"](text, place))
    urls = after["project"].pop("urls")
    assert after == before
    assert urls["Repository"] == place
    page = release["absolute"]((ROOT / "README.md").read_text(encoding="utf-8"), place, tag)
    assert all(link.startswith("https://") for link in re.findall(r"\]\(([^)]+)\)", page))
    with pytest.raises(SystemExit, match="not v"):
        release["main"](place, "v0")


def test_the_changelog_begins_with_this_version():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    found = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert found[0] == version
