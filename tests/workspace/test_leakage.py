"""What models of a workspace were trained on, as a user of the library asks for it."""

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.support.files import pairs_file, words_folder
from tests.support.made_results import a_distillation
from tests.support.pairs import WORDS, make_pairs
from tests.support.retrieval import retrieval_folder
from truncate_kit.data import PairSplits, RetrievalSet, TextPair, load_pairs, read_retrieval, split_pairs
from truncate_kit.data.learned import keys_of, note_learned
from truncate_kit.errors import DataError
from truncate_kit.export.exporting import export_onnx
from truncate_kit.methods.bert_lc.result import CombinationReport
from truncate_kit.methods.bert_lc.settings import CombineSettings
from truncate_kit.methods.distill.distilling import distill
from truncate_kit.methods.distill.result import HeldOutScores
from truncate_kit.methods.distill.settings import Budget, DistillSettings
from truncate_kit.methods.distill.texts import RawTexts
from truncate_kit.methods.priors.words import WordPrior
from truncate_kit.methods.tmft.finetune import Preparation, finetune
from truncate_kit.methods.tmft.settings import SweepSettings
from truncate_kit.models import load_encoder, save_encoder
from truncate_kit.pair_keys import read_seen
from truncate_kit.training.configuration import TrainingSettings, word_training
from truncate_kit.training.cutting import cut
from truncate_kit.training.model_origins import DISTILLED
from truncate_kit.training.retrieval_evaluator import choosing_queries, with_queries
from truncate_kit.training.tasks import Teacher
from truncate_kit.workspace.leakage import chosen_on, chosen_there, unseen
from truncate_kit.workspace.places import Workspace
from truncate_kit.workspace.queries import held_out_queries
from truncate_kit.workspace.records import home_of, is_known, records_of, seen_by
from truncate_kit.workspace.seen import seen_among, seen_pairs
from truncate_kit.workspace.sources import ModelSource
from truncate_kit_cli.workspace import Workspace as CommandWorkspace

SEARCHED = RetrievalSet(
    name="search/test",
    document_ids=("d",),
    documents=("a text",),
    query_ids=("q",),
    queries=("a query",),
    relevance=({0: 1.0},),
)


def trained(folder: Path, model: Path, data: PairSplits, seed: int = 0) -> Workspace:
    """A workspace in which a model was trained on `data`."""
    settings = SweepSettings(layers="1", seeds=(seed,))
    finetune(load_encoder(model), data, out=folder, settings=settings, training=TrainingSettings(epochs=1))
    return Workspace(folder)


class Both(Workspace):
    """A workspace with these results."""

    def __init__(self, folder, sweep, heads, distilled=None):
        super().__init__(folder)
        self.sweep, self.heads, self.distilled = lambda: sweep, lambda: heads, lambda: distilled


def with_files(workspace, sweep, distilled):
    """The workspace, in whose files these results stand now."""
    sweep.write(workspace.sweep_file)
    distilled.write(workspace.folder / DISTILLED.file)
    return workspace


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return pairs_file(tmp_path_factory.mktemp("data") / "pairs.csv", "score", (0, 1, 2, 3, 4, 5))


@pytest.fixture(scope="module")
def workspace(file, tiny_folder, tmp_path_factory):
    return trained(
        tmp_path_factory.mktemp("work"), tiny_folder("bert"), split_pairs(load_pairs(file, divide=False).train)
    )


@pytest.fixture
def earlier(workspace, tmp_path):
    """The same as an earlier version left it: no model's folder says what it has seen."""
    folder = shutil.copytree(workspace.folder, tmp_path / "earlier")
    for note in folder.glob("*/seen.pairs"):
        note.unlink()
    return Workspace(folder)


def trained_on(workspace, model=None):
    """Fingerprints of the pairs that models learned from or were chosen by, each with the seed that divided it."""
    return {(record.fingerprint, record.seed) for record in records_of(workspace, model)}


def texts(pairs):
    return frozenset(frozenset((pair.first, pair.second)) for pair in pairs)


def test_a_set_that_was_divided_is_scored_on_its_test_part(workspace, file):
    whole = load_pairs(file, divide=False)
    divided = unseen(workspace, whole)
    expected = split_pairs(whole.train)
    assert divided.evaluation.pairs == expected.test.pairs
    assert len(divided.evaluation) < len(whole.train) / 5
    assert divided.notes[-1].endswith("The models here were trained on the rest: only test counts.")
    assert "was divided into" in divided.notes[-1]
    assert trained_on(workspace) == {(expected.fingerprint(), 0)}


def test_pairs_of_which_some_were_held_out_are_known_again(file, tiny_folder, tmp_path):
    whole = load_pairs(file, divide=False)
    divided = split_pairs(whole.train)
    document = divided.train.pairs[0].first
    searched = read_retrieval(retrieval_folder(tmp_path / "search"), metric="mrr")
    searched = replace(searched, documents=(document, *searched.documents[1:]))
    result = finetune(
        load_encoder(tiny_folder("bert")),
        divided,
        out=tmp_path / "work",
        settings=SweepSettings(layers="1", seeds=(0,)),
        training=TrainingSettings(epochs=1),
        retrieval=(asked := replace(searched, queries=(*searched.queries, *(f"{text} 2" for text in searched.queries)),
                                    query_ids=searched.query_ids * 2, relevance=searched.relevance * 2)),
    )  # fmt: skip
    workspace = Workspace(tmp_path / "work")
    assert unseen(workspace, whole).evaluation.pairs == divided.test.pairs
    lean, elsewhere = tmp_path / "work/lean", replace(asked, name="a copy", documents=asked.documents[::-1])
    said = "chosen by MRR@10 of half of these queries; on the other half the lean one has"
    said = f"The models here were {said} {result.lean.test:.2f}."
    for model in (lean, lean / "model.onnx", workspace.full):
        for data in (asked, elsewhere):
            assert chosen_on(workspace, model, data) == chosen_there(model, data) == said
        left, how = held_out_queries(elsewhere, model)
        assert set(left.queries) == {*elsewhere.queries} - {*choosing_queries(elsewhere)}
        assert how == f"19 of 38 queries of a copy chose {model}: only the others count."
    assert chosen_there("lean", asked) is None
    # Each query is known wherever it stands, in whatever order and company, also by what is made from the model.
    chose = {*asked.queries} - {*left.queries}
    cut(load_encoder(lean), 0, out=tmp_path / "made")
    for data in (searched, replace(asked, queries=asked.queries[::-1]), replace(searched, name="another")):
        number, of = sum(query in chose for query in data.queries), f"these {len(data.queries)} queries"
        for model in (lean, tmp_path / "made/lean"):
            said = f"{model}, or what it was made from, was chosen by {number} of {of}: a score on them says little of"
            assert chosen_there(model, data) == f"{said} others."
            left, how = held_out_queries(data, model)
            assert left.queries == tuple(query for query in data.queries if query not in chose)
            assert how.startswith(f"{number} of {len(data.queries)} queries of {data.name} chose {model}")
    assert held_out_queries(asked, lean, workspace.full)[0].queries == held_out_queries(asked, lean)[0].queries
    some = tuple(place for place, query in enumerate(asked.queries) if query in chose)
    with pytest.raises(DataError, match=r"chose .*lean, and none is left"):
        held_out_queries(with_queries(asked, some), lean)
    assert chosen_on(workspace, tmp_path, asked) is None
    # An earlier version noted the set alone, by its fingerprint or its name.
    (lean / "seen.pairs").unlink()
    said = f"chosen by MRR@10 of half of the queries that {asked.name} had then: which of these are among them is not "
    for data in (searched, replace(asked, queries=asked.queries[::-1])):
        assert chosen_on(workspace, lean, data) == f"The models here were {said}known."
        assert held_out_queries(data, lean) == (data, f"The models here were {said}known.")
    assert chosen_on(workspace, lean, replace(searched, name="another")) is None
    assert set(held_out_queries(elsewhere, lean)[0].queries) == {*elsewhere.queries} - {*choosing_queries(elsewhere)}
    replace(result, queries_fingerprint="").write(workspace.sweep_file)
    assert chosen_on(workspace, lean, searched).endswith(f"the lean one has {result.lean.test:.2f}.")
    assert chosen_on(workspace, lean, elsewhere) is None


def test_each_model_has_seen_what_it_learned_from(workspace, file):
    """Heads and a fine-tuned model in one workspace may have divided the same set by other seeds."""
    whole = load_pairs(words_folder(workspace.folder / "words"))
    fingerprint = whole.fingerprint()
    changed = replace(workspace.sweep(), data_fingerprint=fingerprint, chosen_seed=2)
    heads = SimpleNamespace(model="elsewhere", data_fingerprint=fingerprint, settings=SimpleNamespace(seeds=(0, 1)))
    both = Both(workspace.folder, changed, heads)
    for model, seed in ((both.frozen, 0), (both.lean, 2), (both.full, 2)):
        assert trained_on(both, model) == {(fingerprint, seed)}
        assert unseen(both, whole, model).test.pairs == split_pairs(whole.train, seed, whole.shares).test.pairs


def test_heads_over_a_model_that_learned_from_the_same_words_have_seen_what_both_had(workspace, tmp_path):
    """The test pairs of one division are among those that the other learned from."""
    words = load_pairs(words_folder(tmp_path / "words"))

    def heads_over_lean(whole):
        changed = replace(workspace.sweep(), data_fingerprint=whole.fingerprint(), chosen_seed=2)
        seeds, model = SimpleNamespace(seeds=(0,)), str(workspace.lean)
        heads = SimpleNamespace(model=model, data_fingerprint=whole.fingerprint(), settings=seeds)
        return Both(workspace.folder, changed, heads)

    many = replace(words, train=make_pairs(200))
    both, tests = heads_over_lean(many), [split_pairs(many.train, seed, many.shares).test for seed in (0, 2)]
    expected = texts(tests[0]) & texts(tests[1])
    assert 3 <= len(expected) < min(map(len, tests))
    for model in (both.frozen, None):
        found = unseen(both, many, model)
        assert texts(found.evaluation) == expected
        assert "seed 0) by its distinct pairs. " in found.notes[-1]
        assert f"seed 2) by its distinct pairs. {len(found.test)} pairs are in test each time." in found.notes[-1]
    both = heads_over_lean(words)
    with pytest.raises(DataError, match="in test each time"):
        unseen(both, words, both.frozen)


def test_what_a_distillation_replaced_has_seen_nothing(earlier, file):
    workspace = earlier
    whole = load_pairs(file, divide=False)
    divided = split_pairs(whole.train)
    for fingerprint, expected in (("", whole.evaluation.pairs), (divided.fingerprint(), divided.test.pairs)):
        distilled = replace(a_distillation(), scores=None, data_fingerprint=fingerprint)
        both = with_files(workspace, replace(workspace.sweep(), retrieval="search/test"), distilled)
        for model in (both.lean, both.full):
            assert unseen(both, whole, model).evaluation.pairs == expected
        assert chosen_on(both, both.lean, SEARCHED) is None
    said = "The models here were chosen by a part of the rest: only test counts."
    assert unseen(both, whole, both.lean).notes[-1].endswith(said)


def test_a_distillation_chose_the_lean_model_alone(earlier):
    workspace = earlier
    scores = HeldOutScores(
        data="search/test",
        metric="recall@10",
        lean=71.234,
        full=72.0,
        mixed=None,
        difference=-0.766,
        low=-1.0,
        high=0.1,
    )
    both = with_files(workspace, workspace.sweep(), replace(a_distillation(), scores=scores))
    said = "The lean model here was chosen by recall@10 of half of these queries; on the other half it has 71.23."
    assert chosen_on(both, both.lean, SEARCHED) == said
    assert chosen_on(both, both.full, SEARCHED) is None
    scores = replace(scores, data="elsewhere", queries_fingerprint=SEARCHED.queries_fingerprint())
    both = with_files(workspace, workspace.sweep(), replace(a_distillation(), scores=scores))
    assert chosen_on(both, both.lean, SEARCHED) == said


def test_what_was_made_before_a_distillation_has_seen_what_it_learned_from(workspace, file):
    """Combined layers and frozen heads of a fine-tuned model stay where a distillation takes its place."""
    whole = load_pairs(file, divide=False)
    divided = split_pairs(whole.train)
    heads = SimpleNamespace(model=str(workspace.lean), data_fingerprint="others", settings=SimpleNamespace(seeds=(0,)))
    distilled = replace(a_distillation(), data_fingerprint="")
    both = Both(workspace.folder, workspace.sweep(), heads, distilled)
    for model in (both.combined, both.frozen, None):
        found = unseen(both, whole, model)
        assert found.evaluation.pairs == divided.test.pairs
        said = "The models here were trained on the rest: only test counts."
        assert sum(note.endswith(said) for note in found.notes) == 1


def test_a_word_set_is_divided_as_the_seed_of_the_saved_model_divided_it(tiny_folder, tmp_path):
    whole = load_pairs(words_folder(tmp_path / "words"))
    workspace = trained(tmp_path / "work", tiny_folder("bert"), whole, seed=3)
    divided = unseen(workspace, whole)
    assert divided.test.pairs == split_pairs(whole.train, 3, whole.shares).test.pairs
    assert divided.test.pairs != split_pairs(whole.train, 0, whole.shares).test.pairs


def test_what_was_not_trained_on_stays_whole(workspace, file, tmp_path):
    whole = load_pairs(file, divide=False)
    assert unseen(Workspace(tmp_path), whole) is whole  # nothing was trained there
    other = replace(whole, train=make_pairs(40))
    assert unseen(workspace, other) is other
    with_test = split_pairs(whole.train)
    assert unseen(workspace, with_test) is with_test  # its test split is not trained on
    few = replace(whole, train=replace(whole.train, pairs=whole.train.pairs[:3]))
    with pytest.raises(DataError, match="3 of 3 pairs"):  # too few to be divided, but they were learned from
        unseen(workspace, few)


def of_pairs(whole, pairs):
    return replace(whole, train=replace(whole.train, pairs=tuple(pairs)))


def test_a_file_that_changed_is_known_pair_by_pair(workspace, file):
    """With its rows in another order, one more, sides exchanged or other scores: most of it was trained on."""
    whole = load_pairs(file, divide=False)
    test, every = split_pairs(whole.train).test, whole.train.pairs
    new = TextPair("a new text", "another one", 3.0)
    changed = {
        "sorted": sorted(every, key=lambda pair: (pair.target, pair.first)),
        "one more": (*every, new),
        "sides": [TextPair(pair.second, pair.first, pair.target) for pair in every],
        "scores": [replace(pair, target=5 - pair.target) for pair in every],
    }
    for name, pairs in changed.items():
        found = unseen(workspace, of_pairs(whole, pairs))
        expected = texts(test) | ({frozenset((new.first, new.second))} if name == "one more" else set())
        assert texts(found.evaluation) == expected, name
        known = len(every) - len(test)
        assert found.notes == (
            f"{known} of {len(pairs)} pairs of {whole.name} are left out: models in {workspace.folder} were trained on "
            f"them or chosen by them. That leaves {len(expected)} pairs.",
        )
    with pytest.raises(DataError, match=r"40 of 42 pairs .* are left out: .* That leaves 2 pairs\."):
        unseen(workspace, of_pairs(whole, (*split_pairs(whole.train).train.pairs[:40], new, replace(new, first="b"))))


def test_how_many_of_some_pairs_a_model_has_seen(workspace, file, tmp_path):
    """For splits that are named, of which nothing is left out."""
    divided = split_pairs(load_pairs(file, divide=False).train)
    elsewhere = Workspace(tmp_path / "elsewhere")
    for here in (workspace, elsewhere):
        for name, pairs in divided.items():
            said = seen_among(here, pairs, workspace.lean)
            if name == "test":
                assert said is None
            else:
                known = f"trained on or chosen by {len(pairs)} of these {len(pairs)} pairs"
                assert said == f"{workspace.lean} was {known}: a score on them says little of others."
        more = replace(divided.test, pairs=(*divided.test.pairs, divided.dev.pairs[0]))
        assert f"1 of these {len(more)} pairs" in seen_among(here, more, workspace.lean)
    assert seen_among(workspace, divided.train, "mini-bert") is None  # which was not made here


def test_of_a_folder_with_a_test_split_its_pairs_are_looked_at_one_by_one(workspace, file):
    """Unless it is the very one that was learned from, whose test split stays as it was given."""
    divided = split_pairs(load_pairs(file, divide=False).train)
    doubled = replace(divided.test, pairs=(*divided.test.pairs, divided.train.pairs[0]))
    found = unseen(workspace, replace(divided, test=doubled))
    assert found.test.pairs == divided.test.pairs
    assert found.train is divided.train
    assert "1 of " in found.notes[-1]
    alone = replace(divided, train=None, dev=None, test=divided.dev)
    with pytest.raises(DataError, match="That leaves 0 pairs"):
        unseen(workspace, alone)


def test_results_of_an_earlier_version_note_no_pairs(workspace, file, tmp_path):
    """The whole file is known by its fingerprint, and of a changed one it is said that nothing is known."""
    folder = shutil.copytree(workspace.folder, tmp_path / "old")
    (folder / "sweep.pairs").unlink()
    whole, old = load_pairs(file, divide=False), Workspace(folder)
    assert unseen(old, whole).evaluation.pairs == split_pairs(whole.train).test.pairs
    changed = of_pairs(whole, reversed(whole.train.pairs))
    found = unseen(old, changed)
    assert found.evaluation == changed.evaluation
    assert found.notes == (
        f"What is left in {folder}, by an earlier version or damaged, does not say which pairs were learned from: "
        "whether some of these were "
        "is not known.",
    )


def test_a_model_elsewhere_is_known_where_it_lies_and_so_is_what_was_made_from_it(workspace, file, tmp_path):
    whole, elsewhere = load_pairs(file, divide=False), Workspace(tmp_path / "elsewhere")
    expected = texts(split_pairs(whole.train).test)
    changed = of_pairs(whole, reversed(whole.train.pairs))
    assert home_of(workspace.lean).folder == home_of(workspace.lean / "config.json").folder == workspace.folder
    assert home_of(tmp_path) is None
    assert home_of("mini-bert") is None
    assert home_of("\0") is None
    for model in (workspace.lean, workspace.lean / "config.json", workspace.full):
        assert trained_on(elsewhere, model) == trained_on(workspace)
        assert texts(unseen(elsewhere, whole, model).evaluation) == expected
        assert texts(unseen(elsewhere, changed, model).evaluation) == expected
    assert unseen(elsewhere, whole, tmp_path) is whole
    words = load_pairs(words_folder(tmp_path / "words"))
    second = trained(tmp_path / "second", workspace.lean, words)
    assert len(trained_on(second)) == 2
    for model in (None, second.lean, second.full):
        found = unseen(second, whole, model)
        assert texts(found.evaluation) == expected
        assert texts(unseen(second, changed, model).evaluation) == expected
    assert trained_on(workspace, workspace.lean) == trained_on(workspace)


def test_a_source_is_found_from_any_directory_and_missed_where_it_is_gone(earlier, file, tmp_path, monkeypatch):
    """Results name models as they were typed, in the directory of then."""
    whole = load_pairs(file, divide=False)
    expected = texts(split_pairs(whole.train).test)
    earlier.folder.rename(tmp_path / "first")
    monkeypatch.chdir(tmp_path)
    cut(load_encoder("first/lean"), 0, out=Path("second"))
    elsewhere = Workspace(tmp_path / "elsewhere")
    (tmp_path / "deep").mkdir()
    for place in (tmp_path, tmp_path / "deep", Path("/")):
        monkeypatch.chdir(place)
        assert texts(unseen(elsewhere, whole, tmp_path / "second/lean").evaluation) == expected
    assert Workspace(tmp_path / "second").located("first/lean") == str(tmp_path / "first/lean")
    assert elsewhere.located("mini-bert") == "mini-bert"
    (tmp_path / "first").rename(tmp_path / "renamed")
    found = unseen(elsewhere, whole, tmp_path / "second/lean")
    assert found.evaluation == whole.evaluation
    said = "first/lean, from which a model here was made, is not there: what it had learned from is not known."
    assert found.notes == (*whole.notes, said)


@pytest.mark.parametrize("damage", ["", "{}", "[" * 50])
def test_a_damaged_result_says_that_nothing_is_known(damage, earlier, file):
    whole, damaged = load_pairs(file, divide=False), earlier
    damaged.sweep_file.write_text(damage)
    for model in (None, damaged.lean):
        found = unseen(damaged, whole, model)
        assert found.evaluation == whole.evaluation
        said = f"{damaged.sweep_file} cannot be read: which pairs it is of is not known, and none of them is left out."
        assert found.notes == (*whole.notes, said)


def test_pairs_that_were_seen_are_those_of_train_and_dev(workspace, file, tmp_path):
    expected = split_pairs(load_pairs(file, divide=False).train)
    noted = seen_pairs(workspace)
    assert noted.name == f"pairs noted in {workspace.folder}"
    assert all(pair in noted.pairs for pair in texts([*expected.train, *expected.dev]))
    assert not any(pair in noted.pairs for pair in texts(expected.test))
    old = Workspace(shutil.copytree(workspace.folder, tmp_path / "old"))
    (old.folder / "sweep.pairs").unlink()
    assert seen_pairs(old) is None
    assert seen_pairs(Workspace(tmp_path)) is None


COMBINED = CombinationReport(
    model="m", data="pairs", settings=CombineSettings(), pooling="mean", depth=3, method="exact", up_to=4,
    up_to_reason=None, num_subsets=15, num_pairs=1550, splits=(), chosen=(), chosen_dev=0.0, unseen=None,
    num_unseen=0, beam_loss=None, beam_layers=None, seconds=1.0,
)  # fmt: skip


def test_combined_layers_have_seen_what_their_model_had_wherever_it_lies(earlier, file, tmp_path):
    """Also where nothing but the combination was made in their workspace; damaged, it is said to be unknown."""
    whole, second = load_pairs(file, divide=False), Workspace(tmp_path / "second")
    shutil.copytree(earlier.lean, second.combined)
    result = second.combination / "combination.json"
    replace(COMBINED, model=str(earlier.lean)).write(result)
    elsewhere = Workspace(tmp_path / "elsewhere")
    assert home_of(second.combined).folder == second.folder
    for here in (second, elsewhere):
        found = unseen(here, whole, second.combined)
        assert texts(found.evaluation) == texts(split_pairs(whole.train).test)
    result.write_text("{")
    for here in (second, elsewhere):
        found = unseen(here, whole, second.combined)
        assert found.evaluation == whole.evaluation
        said = f"{result} cannot be read: which pairs it is of is not known, and none of them is left out."
        assert found.notes == (*whole.notes, said)


def test_layers_that_were_chosen_on_the_same_pairs(tmp_path):
    workspace, pairs = Workspace(tmp_path), replace(make_pairs(40), name="pairs")
    combined, others = workspace.combined, replace(pairs, name="other pairs")
    assert chosen_on(workspace, combined, pairs) is None
    report, file = replace(COMBINED, unseen=71.234, num_unseen=1200), workspace.combination / "combination.json"
    report.write(file)  # as an earlier version, which noted no pairs
    said = "Its layers were chosen on a part of these pairs; on the 1,200 others it has 71.23."
    assert chosen_on(workspace, combined, pairs) == said
    assert chosen_on(workspace, combined, others) is None
    assert chosen_on(workspace, combined / "model.onnx", pairs) == said
    assert chosen_on(workspace, workspace.lean, pairs) is None
    note_learned(file, report.identity, pairs.pairs[:30])
    said = "Its layers were chosen on 30 of these 40 pairs."
    assert chosen_on(workspace, combined, replace(others, pairs=pairs.pairs[::-1])) == said
    assert chosen_on(workspace, combined, replace(pairs, pairs=pairs.pairs[30:])) is None
    # The others have their score only where the whole set is there.
    replace(report, num_pairs=40, num_unseen=10).write(file)
    note_learned(file, replace(report, num_pairs=40).identity, pairs.pairs[:30])
    assert chosen_on(workspace, combined, pairs).endswith("; on the 10 others it has 71.23.")
    assert chosen_on(workspace, combined, replace(pairs, pairs=pairs.pairs[10:])).endswith("20 of these 30 pairs.")


@pytest.fixture
def sets():
    """Two sets of pairs without a text in common, each divided."""
    pairs = [replace(pair, target=float(place % 6)) for place, pair in enumerate(make_pairs(120).pairs)]
    others = [replace(pair, first=f"{pair.first} 2", second=f"{pair.second} 2") for pair in pairs[60:]]
    named = {"a": pairs[:60], "b": others}
    return [split_pairs(replace(make_pairs(60), name=name, pairs=tuple(one))) for name, one in named.items()]


def known_of(model, *sets):
    """How many pairs of train and dev of each set a model has seen, by its own folder."""
    seen = read_seen(model)
    return [int(np.isin(keys_of(one.train, one.dev), seen).sum()) for one in sets]


def test_what_a_model_has_seen_goes_where_it_goes(sets, tiny_folder, tmp_path, monkeypatch):
    """Whatever becomes of the workspace in which it was made, and into whichever place it is copied."""
    first, second = sets
    number = [len(keys_of(one.train, one.dev)) for one in sets]
    source = trained(tmp_path / "source", tiny_folder("bert"), first)
    assert known_of(source.lean, *sets) == known_of(source.full, *sets) == [number[0], 0]
    made = Workspace(tmp_path / "made")
    cut(load_encoder(source.lean), 0, out=made.folder)
    export_onnx(load_encoder(source.lean), tmp_path / "served")
    distil(source.full, made.folder / "taught", sets[1])
    # The place is taken by a model that learned from the other set.
    shutil.rmtree(source.folder)
    trained(source.folder, tiny_folder("bert"), second)
    whole = [as_one_file(one) for one in sets]
    for model in (made.lean, tmp_path / "served", tmp_path / "served/model.onnx"):
        found = unseen(made, whole[0], model)
        assert texts(found.evaluation) == texts(first.test)
        assert found.notes[-1].endswith(f"{model} was trained on the rest: only test counts.")
        more = as_one_file(replace(first, test=replace(first.test, pairs=(*first.test, *second.test))))
        said = f"{model} was trained on them or chosen by them. That leaves {len(first.test) + len(second.test)} pairs."
        assert (
            unseen(made, replace(more, train=replace(more.train, pairs=more.train.pairs[::-1])), model)
            .notes[-1]
            .endswith(said)
        )
        assert unseen(made, whole[1], model).evaluation == whole[1].evaluation  # which it never saw
        assert seen_among(made, first.train, model).startswith(f"{model} was trained on or chosen by")
        assert seen_among(made, second.train, model) is None
        assert len(seen_pairs(made, model=model).pairs._keys) == number[0]
    assert known_of(made.folder / "taught/lean", *sets) == [number[0], len(keys_of(second.dev))]


def as_one_file(divided):
    """All pairs of a set, not divided."""
    train = replace(divided.train, pairs=(*divided.train, *divided.dev, *divided.test))
    return PairSplits(name=divided.name, train=train, one_file=True)


def distil(model, out, data):
    """A student of a model, its blocks and epochs chosen by pairs."""
    texts = RawTexts(texts=[f"{one} {two} {three}" for one in WORDS for two in WORDS for three in WORDS[:4]])
    distill(load_encoder(model), texts, out=out, budget=Budget(blocks=2), data=data,
            settings=DistillSettings(epochs=1))  # fmt: skip


def test_a_model_has_seen_what_all_had_that_it_was_made_of(sets, tiny_folder, tmp_path):
    """Also in one workspace, whose result is replaced; what a teacher had seen; and the words of a prior."""
    first, second = sets
    number = [len(keys_of(one.train, one.dev)) for one in sets]
    place = trained(tmp_path / "one", tiny_folder("bert"), first)
    again = load_encoder(place.lean)
    save_encoder(again, place.combined)
    trained(place.folder, place.combined, second)
    assert known_of(place.lean, *sets) == number
    assert known_of(place.full, *sets) == number
    settings, training = SweepSettings(layers="1", seeds=(0,)), TrainingSettings(epochs=1)
    words = load_pairs(words_folder(tmp_path / "words"))
    model = load_encoder(tiny_folder("bert"))
    before = Preparation(teacher=Teacher(again), prior=WordPrior(model, words, replace(word_training(), epochs=1)))
    finetune(model, second, out=tmp_path / "taught", settings=settings, training=training, before=before)
    for name in ("lean", "full"):
        assert known_of(tmp_path / "taught" / name, *sets) == number
        drawn = split_pairs(words.train, 0, words.shares)
        assert known_of(tmp_path / "taught" / name, drawn) == [len(keys_of(drawn.train, drawn.dev))]
    # Another method in the place of the lean one leaves the full one what it knows.
    place.sweep_file.unlink()
    found = unseen(place, of_pairs(first, first.train.pairs + first.test.pairs), place.full)
    assert texts(found.evaluation) == texts(first.test)


def test_a_note_of_absurd_size_is_not_read(tiny_folder, tmp_path):
    """A file of holes takes no room on the disk, and all of the memory."""
    folder = Path(shutil.copytree(tiny_folder("bert"), tmp_path / "model"))
    with (folder / "seen.pairs").open("wb") as file:
        file.truncate(10**12)
    assert len(load_encoder(folder).seen) == 0


def test_a_damaged_note_says_nothing(workspace, file, tmp_path):
    whole, copy = load_pairs(file, divide=False), Workspace(shutil.copytree(workspace.folder, tmp_path / "copy"))
    note = copy.lean / "seen.pairs"
    content = bytearray(note.read_bytes())
    content[-3] ^= 1
    note.write_bytes(content)
    assert read_seen(copy.lean) is None
    assert len(load_encoder(copy.lean).seen) == 0
    assert texts(unseen(copy, whole, copy.lean).evaluation) == texts(split_pairs(whole.train).test)  # by the result


def test_a_copy_is_scored_on_what_its_model_is_scored_on(sets, tiny_folder, tmp_path):
    """A set is divided as it was where all of train and dev are known; a test split with repeats is as it was given."""
    (one, _), elsewhere = sets, Workspace(tmp_path / "elsewhere")
    source = trained(tmp_path / "source", tiny_folder("bert"), one)
    copy = shutil.copytree(source.lean, tmp_path / "copy")
    whole = as_one_file(one)
    found = unseen(elsewhere, whole, copy)
    assert found.test.pairs == unseen(source, whole, source.lean).test.pairs == one.test.pairs
    assert found.notes[-1].endswith(f"{copy} was trained on the rest: only test counts.")
    repeats = replace(one, test=replace(one.test, pairs=(*one.test, *one.train.pairs[:3])), shares=None, one_file=False)
    trained(source.folder, tiny_folder("bert"), repeats)
    copy = shutil.copytree(source.lean, tmp_path / "second")
    for here, model in ((source, source.lean), (elsewhere, copy)):
        assert unseen(here, repeats, model).evaluation.pairs == repeats.test.pairs


def test_a_name_is_not_the_folder_in_which_it_was_typed(workspace, monkeypatch):
    monkeypatch.chdir(workspace.lean)
    assert seen_by("mini-bert") is None
    assert not is_known("mini-bert")
    assert len(seen_by(workspace.lean / "config.json")) == len(seen_by(workspace.lean)) > 0


def test_what_results_say_of_a_model_of_an_earlier_version_goes_with_what_is_made_of_it(earlier, file, tmp_path):
    whole, said = load_pairs(file, divide=False), split_pairs(load_pairs(file, divide=False).train)
    encoder = CommandWorkspace(tmp_path / "made", quiet=True).load(ModelSource(str(earlier.lean)))
    assert encoder.seen.tolist() == keys_of(said.train, said.dev).tolist()
    made = Workspace(tmp_path / "made")
    cut(encoder, 0, out=made.folder)
    shutil.rmtree(earlier.folder)
    assert texts(unseen(made, whole, made.lean).evaluation) == texts(said.test)
