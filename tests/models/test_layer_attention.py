"""Layer-wise attention pooling against a plain loop over layers: saved, reloaded without this package, exported."""

import math

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from tests.support.families import plain_states
from tests.support.layer_poolers import TEXTS, check_reloaded
from truncate_kit.export.exporting import export_onnx
from truncate_kit.export.runtime import OnnxEncoder
from truncate_kit.models.layer_pooling import LayerAttentionPooling
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import Dense, save_encoder
from truncate_kit.models.truncation import truncate


def with_attention(folder, **settings):
    """Load an encoder with layer attention of wide weights, so that mistakes exceed rounding."""
    encoder = load_encoder(folder)
    torch.manual_seed(1)
    pooler = LayerAttentionPooling(encoder.width, token="last" if encoder.family.decoder else "cls", **settings).eval()
    for weight in pooler.parameters():
        weight.data.add_(torch.randn_like(weight) * 0.3)
    encoder.pool_with(pooler)
    return encoder


def states_of(folder, pooler):
    """CLS (or last token's) and mean states of all layers for each text, in float64."""
    for hidden in (plain_states(folder, text, normed=False) for text in TEXTS):
        token = 0 if pooler.settings["token"] == "cls" else -1
        yield [state[token].double() for state in hidden], [state.double().mean(dim=0) for state in hidden]


def through_mlp(weights, cls, pooled, last_cls):
    pooled = torch.cat([cls[-1], pooled]) if last_cls else pooled
    return torch.tanh(weights["dense.weight"] @ pooled + weights["dense.bias"])


def plain(folder, pooler):
    """The authors' form written out: one text at a time, one query and one key at a time."""
    weights = {name: value.double() for name, value in pooler.state_dict().items()}

    def mapped(name, state):
        out = weights[f"{name}.weight"] @ state
        return torch.where(out < 0, out * (1 / 8 + 1 / 3) / 2, out)

    rows = []
    for cls, mean in states_of(folder, pooler):
        asking, asked = {"both": (cls, mean), "cls": (cls, cls), "mean": (mean, mean)}[pooler.settings["over"]]
        attended = []
        for query in asking:
            raised = [math.exp(float(mapped("query", query) @ mapped("key", key)) / len(cls)) for key in asked]
            shares = [score / sum(raised) for score in raised]
            attended.append(sum(share * mapped("value", value) for share, value in zip(shares, asked, strict=True)))
        rows.append(through_mlp(weights, cls, sum(attended) / len(attended), pooler.settings["last_cls"]))
    return torch.stack(rows).float()


def printed(folder, pooler):
    """Equations 1 to 5 as the paper prints them, by NumPy: one weight for each layer, the same h^l for every layer."""
    w_q, w_k, w_v = (pooler.state_dict()[f"{name}.weight"].double().numpy() for name in ("query", "key", "value"))
    weights = {name: value.double() for name, value in pooler.state_dict().items()}
    rows, shares = [], []
    for cls, mean in states_of(folder, pooler):
        h_c, h_a = {"both": (cls, mean), "cls": (cls, cls), "mean": (mean, mean)}[pooler.settings["over"]]
        numerators = [np.dot(w_q @ c.numpy(), w_k @ a.numpy()) for c, a in zip(h_c, h_a, strict=True)]
        alpha = np.array(numerators) / np.sum(numerators)  # (1)
        h_l = [np.sum([alpha[j] * (w_v @ h_a[j].numpy()) for j in range(len(alpha))], axis=0) for _ in alpha]  # (2)
        pooled = torch.from_numpy(np.mean(h_l, axis=0))  # (3)
        rows.append(through_mlp(weights, cls, pooled, pooler.settings["last_cls"]))  # (4), (5)
        shares.append(alpha)
    return torch.stack(rows).float(), np.stack(shares)


@pytest.mark.parametrize("over", ["both", "cls", "mean"])
@pytest.mark.parametrize("last_cls", [True, False])
def test_the_formula_as_its_authors_run_it(tiny_folder, over, last_cls):
    encoder = with_attention(tiny_folder("bert"), over=over, last_cls=last_cls)
    torch.testing.assert_close(encoder.vectors(TEXTS), plain(tiny_folder("bert"), encoder.pooler), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "over", "last_cls"),
    [("bert", "both", True), ("bert", "cls", False), ("roberta", "mean", True), ("gpt2", "both", False)],
)
def test_the_equations_as_they_are_printed(tiny_folder, name, over, last_cls):
    encoder = with_attention(tiny_folder(name), literal=True, over=over, last_cls=last_cls)
    expected, shares = printed(tiny_folder(name), encoder.pooler)
    torch.testing.assert_close(encoder.vectors(TEXTS), expected, atol=1e-4, rtol=1e-3)
    batch = encoder.tokenize(TEXTS)
    states = encoder.pooler.summaries_and_means(encoder.hidden_states(batch, raw=True), batch["attention_mask"])
    found = encoder.pooler.layer_weights(*states).detach().numpy()  # a vector over the layers for each text
    np.testing.assert_allclose(found, shares, atol=1e-3, rtol=1e-2)
    encoder.pooler.train()  # nothing is drawn: there is no RReLU
    torch.testing.assert_close(encoder.pooler.attend(*states), encoder.pooler.eval().attend(*states))
    encoder.pooler.literal = False
    assert not torch.allclose(encoder.vectors(TEXTS), expected, atol=1e-3)


@pytest.mark.parametrize("name", ["bert", "deberta-v2", "modernbert", "gpt2"])
def test_reloaded_here_and_by_sentence_transformers_without_this_package(tiny_folder, name, tmp_path):
    encoder = with_attention(tiny_folder(name))
    check_reloaded(encoder, plain(tiny_folder(name), encoder.pooler), "layer-attention", tmp_path)


@pytest.mark.parametrize(("name", "fused"), [("bert", 1), ("gpt2", 0)])
def test_exported_with_the_pooling_inside_the_graph(tiny_folder, name, fused, tmp_path):
    save_encoder(truncate(load_encoder(tiny_folder(name)), 1), tmp_path / "cut")
    encoder = with_attention(tmp_path / "cut")
    save_encoder(encoder, tmp_path / "m", model_card="kept")
    used = load_encoder(tmp_path / "m")
    before = used.vectors(TEXTS)
    report = export_onnx(used, tmp_path / "m")
    torch.testing.assert_close(used.vectors(TEXTS), before, atol=0, rtol=0)  # layers are captured once, also then
    assert (report.pooling, report.fused_attention) == ("layer-attention", fused)
    assert (tmp_path / "m/README.md").read_text().startswith("kept\n")  # it was known as the same model
    found = OnnxEncoder.load(tmp_path / "m").vectors(TEXTS)
    torch.testing.assert_close(found, plain(tmp_path / "cut", encoder.pooler), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("layers", [(), (0, 1)])
def test_cls_and_mean_in_one_ordinary_folder(layers, tiny_folder, tmp_path):
    encoder, other = (truncate(load_encoder(tiny_folder("bert"), pooling=pooling), 1) for pooling in ("cls", "mean"))
    for one in (encoder, other) if layers else ():
        one.combine_layers(layers)
    cls, mean = encoder.vectors(TEXTS), other.vectors(TEXTS)
    encoder.pooling = "concat"
    torch.testing.assert_close(encoder.vectors(TEXTS), torch.cat([cls, mean], dim=1))
    encoder.tail.append(Dense(32, 16, bias=True, activation="Tanh"))
    expected = encoder.vectors(TEXTS)
    save_encoder(encoder, tmp_path / "m")
    peer = SentenceTransformer(str(tmp_path / "m"), device="cpu")  # nothing of ours, no code to trust
    torch.testing.assert_close(torch.as_tensor(peer.encode(TEXTS)), expected, atol=1e-5, rtol=1e-4)
    again = load_encoder(tmp_path / "m")
    torch.testing.assert_close(again.vectors(TEXTS), expected, atol=1e-6, rtol=1e-5)
    assert again.pooling_name == truncate(again, 0).pooling_name == "concat"
