"""A contrastive run: what is saved, kept and shown; every pooling and objective on a tiny model."""

import copy
from dataclasses import replace

import pytest
import torch
from sentence_transformers import SentenceTransformer

from tests.support.families import TINY_CONFIGS
from tests.support.pairs import make_pairs, word_triplets
from truncate_kit.core.errors import DataError, LayerOutOfRangeError, UsageError
from truncate_kit.data.pairs import PairSplits
from truncate_kit.data.seen import pair_keys, seen_by
from truncate_kit.data.triplets import TripletSet
from truncate_kit.evaluation.graded import evaluate
from truncate_kit.methods.contrast.run import finetune_contrastive, layer_weights, poolable_encoder
from truncate_kit.methods.contrast.settings import POOLINGS, ContrastiveResult, ContrastiveSettings
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.models.truncation import truncate
from truncate_kit.training.settings import objective_names

TEXTS = ["the cat sat on the mat", "a dog", "the big red dog and not a small blue cat"]
# What configurations call the share of hidden states and of attention weights that is dropped.
DROPS = {"hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout", "embedding_dropout"}
DROPS |= {"mlp_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop"}


@pytest.fixture(scope="module")
def data():
    return PairSplits(name="pairs", dev=make_pairs(20, seed=1), test=make_pairs(20, seed=2))


def run(folder, data, out, **options):
    own = {name: options.pop(name) for name in ("progress", "stage_done") if name in options}
    settings = ContrastiveSettings(**{"batch_size": 6, "epochs": 1, "learning_rate": 1e-3, "seeds": (0,)} | options)
    return finetune_contrastive(load_encoder(folder), word_triplets(), data, out=out, settings=settings, **own)


EVERY = [("bert", pooling, "in-batch") for pooling in POOLINGS]
EVERY += [("bert", "mean", objective) for objective in sorted({*objective_names("contrast")} - {"in-batch", "diffcse"})]
EVERY += [(name, "layer-attention", "in-batch") for name in ("gpt2", "modernbert", "deberta-v2")]


@pytest.mark.parametrize(("name", "pooling", "objective"), EVERY)  # `diffcse` wants a masked head
def test_every_pooling_objective_and_family(tiny_folder, data, tmp_path, name, pooling, objective):
    result = run(tiny_folder(name), data, tmp_path, objective=objective, pooling=pooling, layer=2, evaluate_every=2)
    lean = load_encoder(tmp_path / "lean")
    assert (lean.depth, result.layer, result.depth) == (2, 2, 3)
    assert lean.pooling_name == {"first-last": "mean", "mean-first-last": "last-layer-mean"}.get(pooling, pooling)
    assert lean.combination == ((0, 2) if pooling == "first-last" else None)
    assert len(result.trials[0].dev_scores) == 2  # 3 steps, a look after 2 and at the end
    assert result.dev == pytest.approx(evaluate(lean, data.dev.pairs).spearman, abs=1e-3)
    assert result.test == pytest.approx(evaluate(lean, data.test.pairs).spearman, abs=1e-3)
    assert result.parameters == lean.num_parameters
    trusted = {"trust_remote_code": True} if pooling in ("layer-attention", "mean-first-last") else {}
    peer = SentenceTransformer(str(tmp_path / "lean"), device="cpu", **trusted)
    torch.testing.assert_close(torch.as_tensor(peer.encode(TEXTS)), lean.vectors(TEXTS), atol=1e-5, rtol=1e-4)
    assert ContrastiveResult.read(tmp_path / "contrastive.json") == result
    noted = {*pair_keys(word_triplets().pairs()).tolist()} | {*pair_keys(data.dev).tolist()}
    assert sorted(noted) == seen_by(tmp_path / "lean").tolist()
    assert not torch.equal(  # it was trained
        lean.backbone.get_input_embeddings().weight,
        load_encoder(tiny_folder(name)).backbone.get_input_embeddings().weight,
    )


@pytest.mark.parametrize("name", TINY_CONFIGS)
def test_both_copies_of_a_text_differ_or_it_is_refused(tiny_folder, name):
    encoder = load_encoder(tiny_folder(name))
    plain = ContrastiveSettings(objective="dropout", pooling="mean")
    own = [value for field, value in encoder.backbone.config.to_dict().items() if field in DROPS]
    if not any(own):
        with pytest.raises(UsageError, match="trains without dropout, so both copies of a text are identical"):
            poolable_encoder(encoder, plain, seed=0)
    for settings in (*([plain] if any(own) else []), replace(plain, dropout=0.3)):
        learner = poolable_encoder(encoder, settings, seed=0).train()
        ids = learner.token_ids(TEXTS)
        first, second = learner(**learner.pad(ids + ids)).view(2, len(ids), -1)
        assert not torch.allclose(first, second, atol=1e-4)
    encoder.train()
    first, second = encoder(**encoder.pad(ids + ids)).view(2, len(ids), -1)
    assert torch.allclose(first, second, atol=1e-4) != any(own)  # the encoder that was given is as it was


@pytest.mark.parametrize("name", ["bert", "distilbert", "deberta-v2"])
def test_units_are_dropped_as_by_a_model_that_was_configured_so(tiny_folder, name):
    encoder = load_encoder(tiny_folder(name))
    settings = ContrastiveSettings(objective="in-batch", pooling="mean", mlp=False, dropout=0.4)
    learner = poolable_encoder(encoder, settings, seed=0).train()
    config = copy.deepcopy(encoder.backbone.config)
    for field in DROPS & config.to_dict().keys():
        setattr(config, field, 0.4)
    other = type(encoder.backbone)(config)
    other.load_state_dict(encoder.backbone.state_dict(), strict=False)  # ours has no pooler
    batch = learner.pad(learner.token_ids(TEXTS))
    torch.manual_seed(7)
    found = learner.token_states(**batch)
    torch.manual_seed(7)
    torch.testing.assert_close(found, other.train()(**batch).last_hidden_state)


def states_of(encoder, texts):
    """The first token's and the mean state of every layer for each text alone, (layers, n, d) each."""
    with torch.no_grad():
        hidden = [encoder.hidden_states(encoder.tokenize([text])) for text in texts]
    cls = torch.stack([torch.stack([state[0, 0] for state in states]) for states in hidden], dim=1)
    return cls, torch.stack([torch.stack([state[0].mean(dim=0) for state in states]) for states in hidden], dim=1)


POOLED = {
    "cls": lambda cls, mean: cls[-1],
    "mean": lambda cls, mean: mean[-1],
    "first-last": lambda cls, mean: (mean[0] + mean[-1]) / 2,
    "concat": lambda cls, mean: torch.cat([cls[-1], mean[-1]], dim=1),
    "mean-first-last": lambda cls, mean: torch.cat([mean[-1], (mean[0] + mean[-1]) / 2], dim=1),
}


@pytest.mark.parametrize("pooling", sorted(POOLED))
def test_every_fixed_pooling_of_table_2_goes_through_a_fresh_mlp(tiny_folder, tmp_path, pooling):
    """tanh(W x + b) with W d × d, d × 2d after a concatenation; without it the vectors are x."""
    full = load_encoder(tiny_folder("bert"))
    made = poolable_encoder(full, ContrastiveSettings(pooling=pooling), seed=3).eval()
    pooled = POOLED[pooling](*states_of(full, TEXTS))
    (dense,) = made.tail
    assert tuple(dense.linear.weight.shape) == (16, pooled.shape[1])
    expected = torch.tanh(pooled @ dense.linear.weight.T + dense.linear.bias).detach()
    torch.testing.assert_close(made.vectors(TEXTS), expected, atol=1e-5, rtol=1e-4)
    bare = poolable_encoder(full, ContrastiveSettings(pooling=pooling, mlp=False), seed=3).eval()
    torch.testing.assert_close(bare.vectors(TEXTS), pooled, atol=1e-5, rtol=1e-4)
    save_encoder(bare, tmp_path / "m")
    torch.testing.assert_close(load_encoder(tmp_path / "m").vectors(TEXTS), pooled, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("pooling", ["layer-attention", "first-last", "concat", "mean-first-last"])
def test_the_pooler_removed_after_training(tiny_folder, data, tmp_path, pooling):
    result = run(tiny_folder("bert"), data, tmp_path, pooling=pooling, keep_pooler=False)
    lean = load_encoder(tmp_path / "lean")
    left = {"layer-attention": "cls", "concat": "cls", "mean-first-last": "mean"}.get(pooling, pooling)
    assert (lean.pooler, len(lean.tail)) == (None, 0)
    expected = POOLED[left](*states_of(lean, TEXTS))
    peer = SentenceTransformer(str(tmp_path / "lean"), device="cpu")  # an ordinary folder again
    torch.testing.assert_close(torch.as_tensor(peer.encode(TEXTS)), expected, atol=1e-5, rtol=1e-4)
    assert result.dev == pytest.approx(max(result.trials[0].dev_scores), abs=1e-3)  # scored as it is used
    assert lean.backbone.config.output_hidden_states == (pooling == "first-last")


def test_the_same_seed_gives_the_same_model_and_finished_seeds_are_kept(tiny_folder, data, tmp_path):
    def trained(out, seeds=(0, 1), **options):
        result = run(tiny_folder("bert"), data, tmp_path / out, seeds=seeds, chunk=8, **options)
        assert ContrastiveResult.read(tmp_path / out / "contrastive.json") == result
        return result, load_encoder(tmp_path / out / "lean").vectors(TEXTS)

    (first, vectors), (again, same) = trained("a"), trained("b")
    assert [trial.dev_scores for trial in first.trials] == [trial.dev_scores for trial in again.trials]
    assert first.trials[0].dev_scores != first.trials[1].dev_scores
    assert first.dev_std is not None
    torch.testing.assert_close(vectors, same, atol=0, rtol=0)
    # A run of fewer seeds is about these alone; weights that it forgot come out again.
    kept = (tmp_path / "a/trials/trials.jsonl").read_bytes()
    other, _ = trained("a", (1 - first.chosen_seed,))
    assert [trial.seed for trial in other.trials] == [other.chosen_seed] == [1 - first.chosen_seed]
    once_more, same = trained("a")
    assert replace(once_more, seconds=first.seconds) == first
    assert (tmp_path / "a/trials/trials.jsonl").read_bytes() == kept
    torch.testing.assert_close(same, vectors, atol=0, rtol=0)
    # Trials of other settings are no part of it, and leave it as it is.
    assert trained("a", (0,), pooling="mean")[0].trials != first.trials
    results = [ContrastiveResult.read(path) for path in (tmp_path / "a/trials").glob("*/contrastive.json")]
    assert sorted(len(result.trials) for result in results) == [1, 2]


def test_interrupted_and_continued_it_ends_with_the_same_model(tiny_folder, data, tmp_path):
    def interrupt(task, done, total):
        if "seed 1" in task and done == 2:
            raise KeyboardInterrupt

    folder = tiny_folder("bert")
    with pytest.raises(KeyboardInterrupt):
        run(folder, data, tmp_path / "a", seeds=(0, 1), progress=interrupt)
    assert not (tmp_path / "a/lean").exists()
    continued, whole = (run(folder, data, tmp_path / out, seeds=(0, 1)) for out in "ab")
    assert [trial.dev_scores for trial in continued.trials] == [trial.dev_scores for trial in whole.trials]
    one, other = load_encoder(tmp_path / "a/lean"), load_encoder(tmp_path / "b/lean")
    torch.testing.assert_close(one.vectors(TEXTS), other.vectors(TEXTS), atol=0, rtol=0)


def test_of_what_stands_after_pooling_only_normalize_is_kept(minilm):
    full = load_encoder(minilm)
    for mlp, kept in ((True, ["Dense", "Normalize"]), (False, ["Normalize"])):
        encoder = poolable_encoder(full, ContrastiveSettings(pooling="mean", mlp=mlp), seed=0)
        assert [type(module).__name__ for module in encoder.tail] == kept


def test_how_much_each_layer_counts(tiny_folder):
    encoder = poolable_encoder(load_encoder(tiny_folder("bert")), ContrastiveSettings(), seed=0)
    encoder.pooler.query.weight.data.mul_(50)
    found = layer_weights(encoder, TEXTS)
    with torch.no_grad():
        states = encoder.hidden_states(encoder.tokenize(TEXTS[:1]))
        cls, mean = torch.stack([s[0, 0] for s in states]), torch.stack([s[0].mean(dim=0) for s in states])
        leaky = torch.nn.LeakyReLU((1 / 8 + 1 / 3) / 2)
        scores = leaky(encoder.pooler.query(cls)) @ leaky(encoder.pooler.key(mean)).T / 4
    assert found.weights[0] == pytest.approx(scores.softmax(dim=1).mean(dim=0).tolist(), abs=1e-5)
    assert [len(row) for row in found.weights] == [4, 4, 4]
    assert [sum(row) for row in found.weights] == pytest.approx([1, 1, 1], abs=1e-5)
    with pytest.raises(UsageError, match="uses mean pooling"):
        layer_weights(load_encoder(tiny_folder("bert")), TEXTS)


@pytest.mark.parametrize(
    "options",
    [
        {"objective": "diffcse", "chunk": 8},
        {"objective": "diffcse", "masked_share": 1},
        {"pooling": "mean", "literal": True},
        {"pooling": "first-last", "mlp": False, "keep_pooler": False},
        {"over": "mean", "last_cls": False, "keep_pooler": False},
    ],
)
def test_settings_that_make_no_sense(options):
    with pytest.raises(UsageError) as found:
        ContrastiveSettings(**options)
    assert found.value.hint


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gpt2", {"pooling": "first-last"}),
        ("gpt2", {"pooling": "concat"}),
        ("bert", {"layer": 0}),
        ("llama", {"objective": "dropout", "pooling": "mean", "layer": 0, "dropout": 0.1}),  # nothing drops
    ],
)
def test_models_that_do_not_suit(tiny_folder, data, tmp_path, name, options):
    with pytest.raises((UsageError, LayerOutOfRangeError)):
        run(tiny_folder(name), data, tmp_path, **options)
    assert not (tmp_path / "lean").exists()


def test_rows_and_pairs_that_do_not_suit(tiny_folder, data, tmp_path):
    encoder, settings = load_encoder(tiny_folder("bert")), ContrastiveSettings(objective="hard-negatives")
    mixed = TripletSet(name="mixed", rows=(("a", "b", "c"), ("a", "b")), note="")
    for rows, pairs in (
        (mixed, data),
        (TripletSet(name="one", rows=mixed.rows[:1], note=""), data),
        (word_triplets(), PairSplits(name="pairs", test=data.test)),
    ):
        with pytest.raises(DataError):
            finetune_contrastive(encoder, rows, pairs, out=tmp_path, settings=settings)


def test_the_weight_of_an_own_negative_reaches_the_loss(tiny_folder, data, tmp_path):
    """Before the first step a weight raises every row's loss, by less than itself."""

    def first_loss(weight):
        losses = []
        options = {"objective": "hard-negatives", "hard_negative_weight": weight, "pooling": "mean"}
        watched = {"evaluate_every": 1, "stage_done": lambda stage, loss, dev: losses.append(loss)}
        run(tiny_folder("bert"), data, tmp_path / str(weight), **options, **watched)
        return losses[0]

    plain, raised = first_loss(0.0), first_loss(2.0)
    assert 0.01 < raised - plain < 2.0


def test_a_trained_pooling_can_be_trained_again(tiny_folder, data, tmp_path):
    run(tiny_folder("bert"), data, tmp_path / "a", layer=2)
    cut = truncate(load_encoder(tmp_path / "a/lean"), 1)
    assert cut.pooler is None
    again = run(tmp_path / "a/lean", data, tmp_path / "b", pooling="mean")
    assert again.depth == 2
    assert load_encoder(tmp_path / "b/lean").pooling_name == "mean"
