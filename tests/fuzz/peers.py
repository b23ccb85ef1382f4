"""python -m tests.fuzz.peers: changed model folders, and their vectors beside those of sentence-transformers.

One setting of a valid folder is changed. Where both read it, both give the same vectors; what is read gives the same
twice, and after it was saved. What sentence-transformers alone refuses, or ends in an error on, is no matter here.
"""

import argparse
import contextlib
import io
import json
import logging
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from tests.support.families import make_tiny
from truncate_kit.errors import TruncateKitError
from truncate_kit.models import load_encoder, save_encoder

TEXTS = ["the cat sat", "a dog ran on the big red tree and the mat", "The CAT", "not", "x" * 300, "the " * 60]
ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, 2, 3, -1, 7.5, 10**9, float("nan"), "", "x", "cat", "2", [], ["x"], {}, {"x": 1},
)  # fmt: skip
"""What any setting may be instead of what it should be."""

FIELDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "config.json": {
        "hidden_act": ("relu", "evil"),
        "is_decoder": (),
        "add_cross_attention": (),
        "position_embedding_type": ("relative_key",),
        "num_attention_heads": (4,),
        "num_hidden_layers": (),
        "layer_norm_eps": (1e300,),
        "hidden_dropout_prob": (),
        "pad_token_id": (31,),
        "type_vocab_size": (),
        "max_position_embeddings": (),
        "pruned_heads": ({"0": [0]},),
        "output_hidden_states": (),
        "quantization_config": ({"quant_method": "fp8"}, {"quant_method": "bitsandbytes"}),
        "model_type": ("roberta", "electra"),
        "architectures": (),
        "save_pretrained": (),
        "attribute_map": ({"hidden_size": "num_hidden_layers"},),
        "rope_scaling": (),
    },
    "1_Pooling/config.json": {
        "pooling_mode": (["cls", "mean"], "weightedmean", "max"),
        "pooling_mode_cls_token": (),
        "pooling_mode_mean_tokens": (),
        "word_embedding_dimension": (8,),
        "include_prompt": (),
    },
    "2_Dense/config.json": {
        "activation_function": ("os.system", "torch.nn.modules.activation.GELU"),
        "bias": (),
        "in_features": (8,),
        "out_features": (4,),
        "module_input_name": ("token_embeddings",),
        "module_output_name": ("y",),
        "use_residual": (),
    },
    "config_sentence_transformers.json": {
        "prompts": ({"query": "a "}, {"query": 5}),
        "default_prompt_name": ("query",),
        "truncate_dim": (),
        "model_type": ("SparseEncoder", "CrossEncoder"),
        "similarity_fn_name": (),
    },
    "sentence_bert_config.json": {
        "max_seq_length": (5,),
        "do_lower_case": (),
        "config_args": ({"num_hidden_layers": 2},),
        "tokenizer_args": ({"model_max_length": 4},),
        "processing_kwargs": ({"text": {"max_length": 4, "truncation": True}},),
    },
    "tokenizer_config.json": {
        "model_max_length": (5, 1e30),
        "truncation_side": ("left",),
        "tokenizer_class": ("BertTokenizer", "Evil", "ByT5Tokenizer"),
        "pad_token": ("the",),
        "unk_token": (),
        "additional_special_tokens": (["cat"],),
        "added_tokens_decoder": ({"7": {"content": "zz", "special": True}}, {"-1": {"content": "x"}}),
        "add_prefix_space": (),
        "split_special_tokens": (),
        "do_lower_case": (),
    },
    "tokenizer.json": {
        "normalizer": ({"type": "Lowercase"}, {"type": "Prepend", "prepend": "the "}),
        "pre_tokenizer": ({"type": "FixedLength", "length": 1},),
        "post_processor": (),
        "truncation": ({"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Left"},),
        "version": (),
        "added_tokens": (
            [{"id": 7, "content": "cat", "special": True, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False}],
        ),
    },
}  # fmt: skip
"""Settings by file, with values beside those of `ODD`."""


def make_valid(folder: Path) -> None:
    """A pipeline of transformer, pooling, a linear layer and a norm, with prompts."""
    make_tiny("bert", folder.with_name("plain"))
    save_encoder(load_encoder(folder.with_name("plain")), folder)
    kind = "sentence_transformers.models."
    rows = [row for row in json.loads((folder / "modules.json").read_text()) if row["idx"] < 2]
    rows += [{"idx": n, "name": str(n), "path": f"{n}_{name}", "type": kind + name}
             for n, name in ((2, "Dense"), (3, "Normalize"))]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(rows))
    (folder / "2_Dense").mkdir()
    values = {"in_features": 16, "out_features": 8, "bias": True, "activation_function": "torch.nn.Tanh"}
    (folder / "2_Dense/config.json").write_text(json.dumps(values))
    draw = torch.Generator().manual_seed(0)
    weights = {"linear.weight": torch.randn(8, 16, generator=draw), "linear.bias": torch.randn(8, generator=draw)}
    save_file(weights, folder / "2_Dense/model.safetensors")
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "the cat "}}))


def changes() -> Iterator[tuple[str, str, Any]]:
    """File, setting and value of each changed folder."""
    for file, fields in FIELDS.items():
        for name, values in fields.items():
            yield from ((file, name, value) for value in (*values, *ODD))


def outcome(folder: Path, saved: Path) -> str:
    """What came of one folder: `refused`, `same`, `read here only`, or what is wrong."""
    from sentence_transformers import SentenceTransformer

    try:
        found = load_encoder(folder).encode(TEXTS)
    except TruncateKitError:
        return "refused"
    except Exception as error:
        return f"raw exception: {type(error).__name__}: {error}"[:200]
    save_encoder(load_encoder(folder), saved)
    if not np.isfinite(found).all():
        return "vectors that are not finite"
    if not np.array_equal(found, load_encoder(folder).encode(TEXTS)):
        return "other vectors when read again"
    if not np.array_equal(found, load_encoder(saved).encode(TEXTS)):
        return "other vectors when saved and read again"
    try:
        # One at a time: where it pads, its vectors may depend on a padding that never enters ours.
        model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
        expected = np.stack([model.encode(text) for text in TEXTS])
    except Exception:
        return "read here only"
    same = found.shape == expected.shape and np.allclose(found, expected, atol=1e-4)
    return "same" if same else "other vectors than those of sentence-transformers"


def main() -> int:
    """Run; the exit code is 1 where vectors differ."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.peers", description=__doc__)
    parser.add_argument("--file", choices=list(FIELDS), action="append", help="by default all")
    parser.add_argument("--cases", type=int, default=None, help="number that is drawn; by default all")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    arguments = parser.parse_args()
    cases = [case for case in changes() if not arguments.file or case[0] in arguments.file]
    cases = Random(arguments.seed).sample(cases, min(len(cases), arguments.cases or len(cases)))
    logging.disable(logging.CRITICAL)
    counts = Counter[str]()
    with tempfile.TemporaryDirectory(prefix="peers-") as name:
        home = Path(name)
        make_valid(home / "valid")
        for file, field, value in cases:
            shutil.copytree(home / "valid", home / "changed")
            known = json.loads((home / "changed" / file).read_text())
            (home / "changed" / file).write_text(json.dumps(known | {field: value}))
            with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
                came = outcome(home / "changed", home / "saved")
            counts[came.partition(":")[0]] += 1
            if came not in ("refused", "same", "read here only"):
                sys.stdout.write(f"- {file}, {field} = {value!a}: {came}\n")
                sys.stdout.flush()
            shutil.rmtree(home / "changed")
            shutil.rmtree(home / "saved", ignore_errors=True)
    sys.stdout.writelines(f"{count:,} {came}\n" for came, count in counts.most_common())
    return int(bool(counts.keys() - {"refused", "same", "read here only"}))


if __name__ == "__main__":
    sys.exit(main())
