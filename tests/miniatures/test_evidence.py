"""What pretraining wrote becomes tables, half-precision weights and model cards."""

import argparse
import csv
import json
import random
import shutil

import pytest
import torch
from safetensors.torch import load_file
from scipy.stats import spearmanr
from transformers import AutoModel, AutoTokenizer, BertConfig, BertForMaskedLM

from benchmarks.miniatures import bundle, cards, evidence, pretrain
from tests.support.families import WORDS
from truncate_kit.models import load_encoder

MODELS = ("bert", "electra-discriminator", "electra-generator")
LAYERS = range(4)


def sentence(draw):
    return " ".join(draw.choices(WORDS, k=draw.randint(3, 9)))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    draw = random.Random(1)
    folder = tmp_path_factory.mktemp("pairs")
    for split, count in (("train", 64), ("dev", 24), ("test", 24)):
        with (folder / f"{split}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["sentence1", "sentence2", "score"])
            writer.writerows([sentence(draw), sentence(draw), round(draw.uniform(0, 5), 2)] for _ in range(count))
    return folder


@pytest.fixture(scope="module")
def measured(data, tmp_path_factory):
    """A tiny pretraining of all three with one snapshot each, and the tables of it."""
    draw = random.Random(0)
    text = tmp_path_factory.mktemp("text") / "text.txt"
    text.write_text("\n".join(sentence(draw) for _ in range(120)), encoding="utf-8")
    models, tables = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("tables")
    for model in ("bert", "electra"):
        options = [model, "--text", str(text), "--out", str(models), "--steps", "9", "--batch-size", "40"]
        pretrain.main([*options, "--every", "3", "--keep", "6"])
    evidence.main(["--models", str(models), "--data", str(data), "--out", str(tables)])
    return argparse.Namespace(models=models, tables=tables)


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_moment_and_layer_is_measured(measured, data):
    found = rows(measured.tables / "snapshots.csv")
    # Random weights, nine steps with a snapshot after six of them, and the finished models.
    moments = {(row["model"], int(row["step"])) for row in found}
    assert moments == {(model, step) for model in MODELS for step in (0, 6, 9)}
    assert [int(row["layer"]) for row in found] == list(LAYERS) * len(moments)
    layers = {int(row["layer"]): row for row in found if row["model"] == "bert" and row["step"] == "9"}
    assert {row["cka_to_bert"] for row in layers.values()} == {"1.000"}  # all are held against the finished BERT
    backbone = AutoModel.from_pretrained(measured.models / "bert").eval()
    tokenizer = AutoTokenizer.from_pretrained(measured.models / "bert")
    pairs = rows(data / "test.csv")

    @torch.no_grad()
    def vectors(texts):
        means = []
        for text in texts:
            states = backbone(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states
            means.append(torch.stack(states)[:, 0].mean(dim=1))
        return torch.stack(means, dim=1)

    left, right = (vectors([row[side] for row in pairs]) for side in ("sentence1", "sentence2"))
    cosines = torch.cosine_similarity(left, right, dim=2)
    for layer in LAYERS:
        expected = 100 * spearmanr(cosines[layer], [float(row["score"]) for row in pairs]).statistic
        assert float(layers[layer]["untrained_test"]) == pytest.approx(expected, abs=0.2)  # nearly equal cosines


def write_run(folder, run, steps, start=None, losses=()):
    """What pretraining leaves beside the models."""
    folder.mkdir(exist_ok=True)
    (folder / f"{run}.json").write_text(json.dumps({"steps": steps, "start": start}))
    (folder / f"{run}-losses.csv").write_text("step,words\n" + "".join(f"{step},{loss}\n" for step, loss in losses))


def test_a_discriminator_that_began_as_a_bert_has_no_random_weights(tmp_path):
    (tmp_path / "snapshots" / "electra-discriminator-6").mkdir(parents=True)
    write_run(tmp_path, "bert", 9)
    write_run(tmp_path, "electra", 8, "bert-3")
    assert list(evidence.moments([tmp_path])) == [
        ("bert", 0),
        ("electra-generator", 0),
        ("electra-discriminator", 6),
        ("electra-generator", 8),
        ("electra-discriminator", 8),
        ("bert", 9),
    ]


def test_steps_of_a_run_that_went_on_elsewhere_are_counted_through(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    write_run(first, "bert", 9, losses=[(6, 3.5), (9, 3.25)])
    write_run(first, "electra", 8, "bert-3")
    write_run(second, "bert", 7, "bert", losses=[(6, 3.0), (7, 2.5)])
    write_run(second, "electra", 5, "first")
    (second / "snapshots" / "bert-6").mkdir(parents=True)
    found = evidence.moments([first, second])
    assert {moment: folder for moment, folder in found.items() if moment[0] == "bert"} == {
        ("bert", 0): first / "bert",  # random weights come once
        ("bert", 9): first / "bert",
        ("bert", 15): second / "snapshots" / "bert-6",
        ("bert", 16): second / "bert",
    }
    assert [step for model, step in found if model == "electra-discriminator"] == [8, 13]
    losses = evidence.loss_rows([first, second], "bert")
    assert [(row["step"], row["words"]) for row in losses] == [(6, "3.5"), (9, "3.25"), (15, "3.0"), (16, "2.5")]


def test_falls_are_the_last_layer_against_the_best(measured):
    layers = rows(measured.tables / "snapshots.csv")
    for row in rows(measured.tables / "falls.csv"):
        own = [other for other in layers if (other["model"], other["step"]) == (row["model"], row["step"])]
        for name, column in (("trained", "all_layers_dev"), ("untrained", "untrained_test"), ("cka", "cka_to_bert")):
            values = [float(other[column]) for other in own]
            assert float(row[name]) == pytest.approx(values[-1] - max(values), abs=0.02)
        assert float(row["best_dev"]) == max(float(other["all_layers_dev"]) for other in own)
        assert float(own[int(row["best_layer"])]["all_layers_dev"]) == float(row["best_dev"])


def test_a_second_call_measures_nothing_again(measured, data):
    before = (measured.tables / "snapshots.csv").read_bytes()
    kept = sorted(measured.models.glob("evidence/*.json"))
    written = [path.stat().st_mtime_ns for path in kept]
    assert len(kept) == 9  # three moments of each model
    evidence.main(["--models", str(measured.models), "--data", str(data), "--out", str(measured.tables)])
    assert (measured.tables / "snapshots.csv").read_bytes() == before
    assert [path.stat().st_mtime_ns for path in kept] == written
    assert {path.name for path in measured.tables.iterdir()} >= {"falls.png", "losses.png", "bert.json", "electra.json"}


def write_scores(tables):
    """Tables as a study writes them, of the columns that cards take."""
    for name, columns in (
        ("scores", ("dev", "dev_std", "test", "test_std", "seeds")),
        ("random", ("dev", "dev_std", "test", "test_std", "seeds")),
        ("cka", ("untrained", "own_trained")),
    ):
        with (tables / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["model", "task", "layer", *columns])
            for model in MODELS if name != "random" else ["bert, random weights"]:
                if (name, model) != ("cka", "bert"):  # nothing is held against itself
                    values = range(1000, 1000 + len(columns))
                    # Random weights get worse on dev where they get better on test.
                    signs = (-1 if (name, column) == ("random", "dev") else 1 for column in columns)
                    steps = tuple(10 * sign for sign in signs)
                    writer.writerows(
                        [f"mini-{model}", "3e-4", layer]
                        + [value + step * layer for value, step in zip(values, steps, strict=True)]
                        for layer in LAYERS
                    )


def test_bundled_miniatures_are_the_pretrained_ones_in_half_precision(measured, tmp_path):
    bundle.main(["--models", str(measured.models), "--out", str(tmp_path)])
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"mini-{model}" for model in MODELS]
    for model in MODELS:
        folder = tmp_path / f"mini-{model}"
        stored, trained = (load_file(place / "model.safetensors") for place in (folder, measured.models / model))
        assert stored.keys() == trained.keys()
        assert all(torch.equal(stored[name], trained[name].half()) for name in trained)
        assert next(load_encoder(folder).backbone.parameters()).dtype == torch.float32
        assert json.loads((folder / "config.json").read_text())["dtype"] == "float32"
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        assert (settings["tokenizer_class"], settings["model_max_length"]) == ("PreTrainedTokenizerFast", 128)


def test_cards_say_what_the_tables_say(measured, tmp_path):
    bundle.main(["--models", str(measured.models), "--out", str(tmp_path)])
    write_scores(measured.tables)
    cards.main(["--tables", str(measured.tables), "--out", str(tmp_path)])
    bundle.main(["--models", str(measured.models), "--out", str(tmp_path)])  # leaves the cards
    texts = {model: (tmp_path / f"mini-{model}" / "README.md").read_text(encoding="utf-8") for model in MODELS}
    for model, text in texts.items():
        (row,) = (
            row
            for row in rows(measured.tables / "snapshots.csv")
            if (row["model"], row["step"], row["layer"]) == (model, "9", "2")
        )
        untrained = f"| 2 | {row['untrained_test']} | {row['all_layers_dev']} |"
        cka = "" if model == "bert" else " 1020 | 1021 |"
        assert f"{untrained} 1020 ± 1021 | 1022 ± 1023 |{cka}\n" in text
        random_row = "Random weights of this shape get 1002 ± 1003 on test at layer 0 with a peak rate of 3e-4, their"
        assert (random_row in text) == (model == "bert")
        assert "10 epochs, peak rate 0.001, mean ± standard deviation over 1004 seeds" in text
        assert "9 steps with a peak rate of 0.0015" in text
        assert ("and a detection weight of 50" in text) == (model != "bert")
        assert "license: other" in text
        assert "| SICK, training sentences (Marelli et al. 2014) | CC BY-NC-SA 3.0 |" in text
    assert "3 blocks × 16, 2 heads" in texts["electra-generator"]
    assert "replaced words are found" not in texts["bert"]
    assert "replaced words are found" in texts["electra-discriminator"]


def test_a_card_names_all_runs_and_adds_them_up(measured, tmp_path):
    write_scores(measured.tables)
    tables = tmp_path / "tables"
    shutil.copytree(measured.tables, tables)
    (run,) = json.loads((tables / "bert.json").read_text())["runs"]
    run |= {"tokens": 2_000_000, "seconds": 3600}
    more = run | {"steps": 1234, "training": run["training"] | {"learning_rate": 0.001}, "start": "bert"}
    (tables / "bert.json").write_text(json.dumps({"runs": [run, more]}))
    text = cards.card("bert", "bert", tables)
    assert (
        "9 steps with a peak rate of 0.0015, then 1,234 steps with a peak rate of 0.001, with 40 texts a step; "
        "4 million tokens in all, AdamW, bf16, 2.0 hours.\n" in text
    )


def test_a_model_that_is_no_miniature_is_refused(measured, tmp_path):
    big = BertConfig(vocab_size=8192, hidden_size=768, intermediate_size=768, num_hidden_layers=1)
    BertForMaskedLM(big).save_pretrained(tmp_path / "big")  # about 11 million weights of two bytes
    AutoTokenizer.from_pretrained(measured.models / "bert").save_pretrained(tmp_path / "big")
    with pytest.raises(SystemExit, match="more than the 8,388,608 of a miniature"):
        bundle.halve(tmp_path / "big", tmp_path / "half")
