"""The loss of a student, against plain arithmetic; and when learning ends."""

import numpy as np
import pytest
import torch

from tests.support.families import WORDS
from truncate_kit.methods.distill.learning import RawTexts, TaughtTexts, store_texts, student_run
from truncate_kit.methods.distill.settings import DistillSettings
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.truncation import keep
from truncate_kit.training.loop import Evaluator, Group

TEXTS = [f"{one} {other} cat {third}" for one in WORDS for other in WORDS for third in ("", "mat")]


@pytest.fixture(scope="module")
def taught(tiny_folder, tmp_path_factory):
    full = load_encoder(tiny_folder("bert")).eval()
    store = store_texts(full, RawTexts(texts=TEXTS, queries=TEXTS[:5]), tmp_path_factory.mktemp("t") / "texts")
    store.vectors = full.encode_ids([store.ids(place) for place in range(len(store))]).numpy().astype(np.float16)
    return full, store


def loss_of(taught, batch, **settings):
    full, store = taught
    student = keep(full, (1, 3)).eval()
    examples = TaughtTexts(store, np.arange(len(store)), DistillSettings(**settings), (full, (1, 3)))
    with torch.no_grad():
        return student, float(examples.loss(student, batch))


def cosines(taught, student, batch):
    _, store = taught
    with torch.no_grad():
        found = student(**student.pad([store.ids(place) for place in batch]))
    wanted = store.vectors_at(batch)
    return found, wanted, torch.nn.functional.cosine_similarity(found, wanted)


BATCH = [0, 3, 7, 40, 41, 200]


def test_the_loss_is_the_distance_to_the_full_models_vectors(taught):
    student, loss = loss_of(taught, BATCH)
    assert loss == pytest.approx(float((1 - cosines(taught, student, BATCH)[2]).mean()), abs=1e-5)


def test_queries_count_as_they_are_weighted(taught):
    mean = (5 * 3 + len(taught[1]) - 5) / len(taught[1])  # of the weights of all texts, five of which are queries
    student, loss = loss_of(taught, BATCH, query_weight=3.0)
    distance = 1 - cosines(taught, student, BATCH)[2]  # the first two places are queries
    assert loss == pytest.approx(float((3 * distance[:2].sum() + distance[2:].sum()) / 6) / mean, abs=1e-5)
    alone = [0, 1, 4]  # texts of like length are learned together, so that queries are often alone
    student, loss = loss_of(taught, alone, query_weight=3.0)
    assert loss == pytest.approx(float(3 * (1 - cosines(taught, student, alone)[2]).mean()) / mean, abs=1e-5)
    assert loss_of(taught, alone, query_weight=0.0)[1] == 0


@pytest.mark.parametrize("states", [0.0, 1.0])
def test_a_batch_with_fewer_texts_than_processes_has_gradients_of_nothing(taught, states, monkeypatch):
    full, store = taught
    group = Group(1, 2)  # the second of two, which has no share of one text
    monkeypatch.setattr(
        Group, "gather", lambda self, mine, total: torch.cat([torch.ones(1, 1, mine.shape[-1]), mine], 1)
    )
    settings = DistillSettings(states=states)
    examples = TaughtTexts(store, np.arange(len(store)), settings, (full, (1, 3)), group)
    loss = examples.loss(keep(full, (1, 3)), [7])
    loss.backward()
    assert torch.isfinite(loss)


def test_similarity_compares_all_cosines_of_the_batch(taught):
    student, plain = loss_of(taught, BATCH)
    _, loss = loss_of(taught, BATCH, similarity=2.0)
    found, wanted, _ = cosines(taught, student, BATCH)
    total = 0.0
    for one in range(6):
        for other in range(6):
            pair = [torch.cosine_similarity(side[one], side[other], dim=0) for side in (found, wanted)]
            total += float(pair[0] - pair[1]) ** 2 / 36
    assert loss == pytest.approx(plain + 2 * total, abs=1e-5)


def test_states_compare_the_tokens_behind_each_kept_block(taught):
    full, store = taught
    student, plain = loss_of(taught, BATCH)
    _, loss = loss_of(taught, BATCH, states=0.5)
    distances = []
    with torch.no_grad():
        for place in BATCH:  # one text at a time: no padding
            inputs = full.pad([store.ids(place)])
            mine, its = student.hidden_states(inputs), full.hidden_states(inputs)
            distances.append([1 - torch.cosine_similarity(mine[n], its[b], dim=-1)[0] for n, b in ((1, 1), (2, 3))])
    mean = torch.cat([torch.stack(pair, dim=1) for pair in distances]).mean()
    assert loss == pytest.approx(plain + 0.5 * float(mean), abs=1e-5)


def test_learning_ends_where_scores_stop_growing(taught):
    full, store = taught

    class Flat(Evaluator):
        def score(self, encoder):
            return 50.0, None

    settings = DistillSettings(batch_size=4)
    student = keep(full, (1, 3))
    examples = TaughtTexts(store, np.arange(len(store)), settings)
    run = student_run(student, examples, Flat(), settings)
    assert run.train().stage == 11 < run.stages  # ten evaluations without a gain on the first
