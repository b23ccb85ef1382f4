"""Whether scores may be compared, by how the folders of both models say they were made. Nothing here is measured."""

import shutil
from dataclasses import replace

import pytest

from tests.support.made_results import a_combination, a_distillation
from tests.support.pairs import TEXTS
from truncate_kit.bench.run import Subject
from truncate_kit.bench.yardstick import check_yardstick, was_trained
from truncate_kit.methods.bert_lc.combine import combined_encoder
from truncate_kit.models import keep, load_encoder, save_encoder, truncate
from truncate_kit.training.cutting import CutResult, cut
from truncate_kit.training.model_origins import CUT, DISTILLED
from truncate_kit.workspace.places import Workspace

A_CUT = CutResult(model="", layer=1, depth=3, parameters=5, full_parameters=8)


@pytest.fixture
def plain(tiny_folder, tmp_path):
    """A transformer as it was pretrained, without modules.json."""
    return shutil.copytree(tiny_folder("bert"), tmp_path / "plain")


@pytest.fixture
def tuned(plain, tmp_path):
    """A sentence-transformers folder."""
    return save_encoder(load_encoder(plain), tmp_path / "tuned")


@pytest.fixture
def checked(tmp_path):
    """Whether the difference is stated, and the warnings, of two folders."""

    def check(lean, full, blocks=None):
        return check_yardstick(Subject("lean", lean, tmp_path, blocks=blocks), Subject("full", full, tmp_path))

    return check


def is_of_a_part(found):
    comparable, warnings = found
    return comparable and len(warnings) == 1 and "a part of another one and was not trained since" in warnings[0]


def combined_of(source, workspace, model=None):
    """`workspace`/combined as `combine` leaves it: all layers of `source`."""
    encoder = load_encoder(source)
    report = replace(a_combination(1), model=model or str(source))
    report.write(workspace / "combination/combination.json")
    return save_encoder(combined_encoder(encoder, tuple(range(encoder.depth + 1))), workspace / "combined")


def distilled_of(source, workspace):
    """`workspace` as `distill` leaves it."""
    encoder = load_encoder(source)
    save_encoder(encoder, workspace / "full")
    save_encoder(truncate(encoder, 1), workspace / "lean")
    replace(a_distillation(), model=str(source)).write(workspace / "lean" / DISTILLED.file_name)
    return workspace / "lean"


@pytest.mark.parametrize("kept", [1, (1, 3)])
def test_a_cut_of_a_plain_model_was_trained_as_little_as_that(plain, tuned, checked, tmp_path, kept):
    """It is saved with a modules.json, and only its record says that nothing was learned."""
    cut(load_encoder(plain), kept, out=tmp_path / "run")
    lean = tmp_path / "run/lean"
    assert (lean / "modules.json").is_file()
    assert was_trained(lean) is False
    assert is_of_a_part(checked(lean, plain))
    comparable, (said,) = checked(lean, tuned)
    assert not comparable
    assert "the lean model was not fine-tuned and the full one was" in said


def test_a_cut_of_a_tuned_model_was_trained_before(plain, tuned, checked, tmp_path):
    cut(load_encoder(tuned), 1, out=tmp_path / "run")
    lean = tmp_path / "run/lean"
    assert was_trained(lean) is True
    assert is_of_a_part(checked(lean, tuned))
    assert checked(lean, plain)[0] is False


@pytest.mark.parametrize(
    ("kept", "title"), [((1, 3), "lean: blocks 1, 3"), ((1, 2), "lean: layer 2"), (2, "lean: layer 2")]
)
def test_a_report_names_the_blocks_that_a_folder_was_cut_to(kept, title, tuned, tmp_path):
    cut(load_encoder(tuned), kept, out=tmp_path / "made")
    facts = Subject("lean", tmp_path / "made/lean", tmp_path / "scratch").facts()
    assert (facts.title, facts.blocks) == (title, kept if kept == (1, 3) else None)


def test_a_report_names_the_blocks_of_a_distilled_model(tuned, tmp_path):
    lean = save_encoder(keep(load_encoder(tuned), (1, 3)), tmp_path / "lean")
    replace(a_distillation(), chosen=(1, 3)).write(lean / DISTILLED.file_name)
    assert Subject("lean", lean, tmp_path / "scratch").facts().blocks == (1, 3)
    (lean / DISTILLED.file_name).write_text("{}")
    assert Subject("lean", lean, tmp_path / "scratch").facts().title == "lean: layer 2"


def test_blocks_that_a_bench_keeps_are_a_part_too(plain, tuned, checked):
    assert is_of_a_part(checked(plain, plain, blocks=(1, 3)))
    assert is_of_a_part(checked(tuned, tuned, blocks=(1, 3)))
    assert checked(tuned, plain, blocks=(1, 3))[0] is False


def test_a_combination_is_compared_with_what_it_was_made_of(plain, tuned, checked, tmp_path):
    """Nothing is trained, and nothing is left out."""
    combined = combined_of(plain, tmp_path / "run")
    assert (combined / "modules.json").is_file()
    assert was_trained(combined) is False
    assert checked(combined, plain) == (True, [])
    assert checked(combined, tuned)[0] is False
    other = combined_of(tuned, tmp_path / "other")
    assert was_trained(other) is True
    assert checked(other, tuned) == (True, [])
    elsewhere = shutil.copytree(tuned, tmp_path / "elsewhere")
    assert "same fine-tuning budget" in " ".join(checked(other, elsewhere)[1])
    assert was_trained(save_encoder(load_encoder(plain), tmp_path / "run/another")) is True  # the record is not its own


def test_what_a_cut_model_is_made_into_is_still_a_part(plain, checked, tmp_path):
    cut(load_encoder(plain), 2, out=tmp_path / "first")
    combined = combined_of(tmp_path / "first/lean", tmp_path / "second")
    assert was_trained(combined) is False
    assert is_of_a_part(checked(combined, plain))
    assert checked(combined, tmp_path / "first/lean") == (True, [])


def test_a_distilled_model_learned_from_the_one_it_is_compared_with(plain, tuned, checked, tmp_path):
    lean = distilled_of(plain, tmp_path / "run")
    assert was_trained(lean) is True
    assert checked(lean, plain) == (True, [])
    assert checked(lean, tmp_path / "run/full") == (True, [])
    assert "same fine-tuning budget" in " ".join(checked(lean, tuned)[1])
    cut(load_encoder(lean), 1, out=tmp_path / "cut")
    assert is_of_a_part(checked(tmp_path / "cut/lean", plain))
    late = cut_then_distilled(plain, tmp_path / "late")
    assert checked(late, plain) == (True, [])  # what was cut has learned since


def cut_then_distilled(plain, folder):
    cut(load_encoder(plain), 2, out=folder / "cut")
    return distilled_of(folder / "cut/lean", folder / "run")


@pytest.mark.parametrize("name", ["owner/name", "gone/model", "", "\0", "~nobody/x"])
def test_of_a_source_that_is_not_here_nothing_is_known(plain, tuned, checked, tmp_path, name):
    """Nor is anything asked of the hub."""
    lean = save_encoder(truncate(load_encoder(plain), 1), tmp_path / "run/lean")
    replace(A_CUT, model=name).write(lean / CUT.file_name)
    assert was_trained(lean) is None
    for full in (plain, tuned):
        assert is_of_a_part(checked(lean, full))


@pytest.mark.parametrize(("kept", "texts"), [(2, None), (None, TEXTS)])
def test_a_bundled_source_is_known_by_its_name(tmp_path, checked, kept, texts):
    """Also where a part of its vocabulary is all that was left out."""
    cut(load_encoder("mini-bert"), kept, out=tmp_path / "run", texts=texts)
    assert was_trained(tmp_path / "run/lean") is False
    assert is_of_a_part(checked(tmp_path / "run/lean", "mini-bert"))


def test_a_record_that_is_damaged_or_leads_in_a_circle_says_only_that_it_is_a_part(plain, checked, tmp_path):
    lean = save_encoder(truncate(load_encoder(plain), 1), tmp_path / "run/lean")
    other = save_encoder(truncate(load_encoder(plain), 1), tmp_path / "other/lean")
    for here, there in ((lean, other), (other, lean)):
        replace(A_CUT, model=str(there)).write(here / CUT.file_name)
    assert was_trained(lean) is None
    assert is_of_a_part(checked(lean, plain))
    for text in ("{", "[]", "{}", '{"model": "x", "format": 99}', "[" * 100_000):
        (lean / CUT.file_name).write_text(text)
        assert was_trained(lean) is None
        assert is_of_a_part(checked(lean, plain))


def test_the_places_are_those_of_a_workspace(tmp_path):
    assert Workspace(tmp_path).combined == tmp_path / "combined"
    assert Workspace(tmp_path).combination == tmp_path / "combination"


def test_what_a_model_was_made_of_is_known_from_any_directory(plain, checked, tmp_path, monkeypatch):
    """Results name models as they were typed; here from the folder above the workspace."""
    combined = combined_of(plain, tmp_path / "run", model="plain")
    for place in (tmp_path, tmp_path / "run", tmp_path.root):
        monkeypatch.chdir(place)
        assert was_trained(combined) is False
        assert checked(combined, plain) == (True, [])
