"""The one model card: read by the hub's reader, escaped, and saying how the saved folder loads."""

import re
from dataclasses import replace

import numpy as np
import yaml
from huggingface_hub import ModelCard as HubCard

from tests.support.heads import with_heads
from truncate_kit.methods.bert_lc.combine import combined_encoder
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.models.store import origin_of
from truncate_kit.report.card import graph_lines, write_card
from truncate_kit.report.view import Table

NAME = 'me/"odd" | <b>name</b> [x](y)'


def card(encoder, model=NAME, **more):
    """The card of the encoder, said to be 3 of 4 layers of the model."""
    return write_card(encoder, replace(origin_of("cut", encoder, encoder), model=model, depth=4), **more)


def test_the_hub_reads_the_front_matter(encoder, tiny_folder, tmp_path):
    found = HubCard(card(encoder)).data
    named = found.library_name, found.pipeline_tag, found.base_model
    assert named == ("sentence-transformers", "sentence-similarity", NAME)
    assert found.tags == ["sentence-transformers", "feature-extraction", "sentence-similarity", "truncated"]
    heads = HubCard(card(with_heads(tiny_folder("bert"))))
    assert heads.data.library_name == "truncate-kit"  # sentence-transformers cannot load it
    assert heads.data.tags == ["sentence-similarity", "truncated"]


def test_scores_stand_in_the_form_of_the_hub(tiny_folder):
    scores = [(NAME, "spearman_cosine", 0.58342), ("b", "m", 1)]
    text = card(load_encoder(tiny_folder("bert")), scores=scores)
    (model,) = yaml.safe_load(text.split("---")[1])["model-index"]  # as the hub's own pages read it
    assert model["name"] == f"{NAME}, layer 3 of 4, not trained"
    assert [row["task"]["type"] for row in model["results"]] == ["semantic-similarity"] * 2
    assert [row["metrics"][0]["value"] for row in model["results"]] == [0.5834, 1]
    found = HubCard(text).data
    read = [(row.dataset_name, row.metric_type, row.metric_value) for row in found.eval_results]
    assert read == [(NAME, "spearman_cosine", 0.5834), ("b", "m", 1)]


def test_a_local_folder_is_no_base_model_but_hands_on_its_own(tiny_folder, tmp_path):
    encoder, folder = load_encoder(tiny_folder("bert")), tmp_path / "mine"
    folder.mkdir()
    text = card(encoder, str(folder))
    assert HubCard(text).data.base_model is None
    assert str(tmp_path) not in text
    assert "\n# mine, layer 3 of 4, not trained\n" in text
    (folder / "README.md").write_text("---\nbase_model: org/model\nlicense: mit\nlanguage: de\n---\n")
    found = HubCard(card(encoder, str(folder))).data
    assert (found.base_model, found.license, found.language) == ("org/model", "mit", "de")
    (folder / "README.md").write_text("---\nlicense: mit\nlanguage: [en, no]\n---\n")  # "no" is False in YAML
    found = HubCard(card(encoder, str(folder))).data
    assert (found.license, found.language) == ("mit", None)
    (folder / "README.md").write_text("---\n: [\n---\n")
    assert HubCard(card(encoder, str(folder))).data.license is None


def test_a_link_of_one_letter_is_replaced_as_a_name_only(tiny_folder, tmp_path, monkeypatch):
    (tmp_path / "my-model").mkdir()
    (tmp_path / "d").symlink_to("my-model")
    monkeypatch.chdir(tmp_path)
    assert "\n# my-model, layer 3 of 4, not trained\n" in card(load_encoder(tiny_folder("bert")), "d")


def test_a_bundled_model_is_none_of_the_hub_and_its_licence_goes_along(tiny_folder):
    found = HubCard(card(load_encoder(tiny_folder("bert")), "mini-bert")).data.to_dict()
    assert "base_model" not in found
    assert (found["license"], found["license_name"]) == ("other", "research-evaluation-demonstration")
    assert "license_link" not in found  # a file beside the bundled one


def test_text_from_outside_opens_nothing(tiny_folder):
    table = Table("Points.", ("layer", "test"), (("1", "40.00"), ("2", "a | b"), ("3", "–")), marked=1)
    encoder, facts = load_encoder(tiny_folder("bert")), (("Data", NAME), ("Seeds", "0, 1"))
    text = card(encoder, facts=facts, table=table, notes=("All\nof `it`.",))
    body = text.split("---\n", 2)[2].strip().splitlines()
    name = 'me/"odd" \\| \\<b\\>name\\</b\\> \\[x\\](y)'
    assert body[0] == f"# {name}, layer 3 of 4, not trained"
    assert body[2] == "A sentence encoder that keeps the first 3 of 4 layers."
    assert body[4:8] == ["| | |", "|---|---|", f"| Data | {name} |", "| Seeds | 0, 1 |"]
    assert body[8:10] == ["| Vectors | 16 numbers, compared by cosine |", "| Maximum length | 36 tokens |"]
    rows = ["Points.", "", "| layer | test |", "|---|---|", "| 1 | 40.00 |", "| **2** | a \\| b |", "| 3 | – |"]
    assert body[11:18] == rows
    assert body[19] == "All of \\`it\\`."
    assert body[-1].startswith("Made by truncate-kit ")


def test_it_says_how_the_folder_loads(tiny_folder):
    plain = load_encoder(tiny_folder("bert"))
    pooler, heads = combined_encoder(plain, (1, 2), over="max"), with_heads(tiny_folder("bert"))
    assert "Load it with `SentenceTransformer(path)` or" in card(plain)
    assert "`SentenceTransformer(path, trust_remote_code=True)`" in card(pooler)
    assert "sentence-transformers cannot compute these codes" in card(heads)


def test_its_lines_load_the_folder_and_its_limits_are_said(encoder, tmp_path):
    text = card(encoder)
    save_encoder(encoder, tmp_path / "lean", model_card=text)
    plain, graph = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names = {}
    exec(plain.replace("'FOLDER'", repr(str(tmp_path / "lean"))), names)
    expected = encoder.vectors(["A dog runs.", "A puppy is running."])
    np.testing.assert_allclose(names["vectors"], expected, atol=1e-5)
    assert graph.strip() == graph_lines("FOLDER", "onnx/model.onnx", encoder.max_length)  # run in tests/report
    assert "Measure on your own texts." in text
    encoder.lower_case = True  # which a plain tokenizer would not do
    assert "onnxruntime" not in card(encoder)
