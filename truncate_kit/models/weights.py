"""The transformer in a model folder: every weight present and finite, no code of the folder run."""

import contextlib
import functools
import json
import pickle
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel

from truncate_kit.errors import ModelError, first_line
from truncate_kit.models.confinement import check_no_adapter, check_shards
from truncate_kit.models.families import family_of
from truncate_kit.models.module_files import pickled
from truncate_kit.models.transformers_logging import quiet_transformers
from truncate_kit.settings import shown
from truncate_kit.wording import harmless

_WEIGHTS = ("*.safetensors", "*.bin")
_MOST_WEIGHTS = 50_000  # of a file; a block has some twenty
# Inside blocks: buffers that earlier versions stored, and what attends to another text, of which there is none.
_UNNEEDED = re.compile(
    r"\.(?:attn|attention)\.(?:masked_)?bias$|\.rotary_emb\.(?:original_)?inv_freq$|\.position_ids$|\.crossattention\."
)


def load_backbone(
    folder: Path, config: PretrainedConfig, *, attention: str | None = None, keep_pooler: bool = False
) -> PreTrainedModel:
    """The base model in float32, its pooler head left out or kept where there is one. Raises `ModelError`."""
    check_shards(folder)
    check_no_adapter(folder)
    _check_there(folder)
    _check_positions(folder, config)
    _check_types(folder)
    _check_size(folder, config)
    pooler = family_of(config).pooler
    options: dict[str, Any] = {"attn_implementation": attention} if attention else {}
    try:
        with quiet_transformers():
            backbone, report = AutoModel.from_pretrained(
                folder,
                config=config,
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are named below, not by a report in the log
                trust_remote_code=False,
                **options,
            )
    except (OSError, SafetensorError, EOFError) as error:
        raise ModelError(
            f"The weights in {folder} are missing or cannot be read: {first_line(error)}.",
            hint="The file may be cut short; download or save the model again.",
        ) from error
    except pickle.UnpicklingError as error:
        raise pickled(folder) from error
    except Exception as error:  # each architecture checks, or does not, in its own way
        raise ModelError(
            f"The model in {folder} cannot be loaded: {first_line(error)}.",
            hint="Check that config.json and the weights belong together.",
        ) from error
    missing = {key for key in report["missing_keys"] if pooler is not None and key.startswith(f"{pooler}.")}
    if pooler is not None and (missing or not keep_pooler):
        setattr(backbone, pooler, None)
    _check_complete(folder, report["missing_keys"] - missing, report["mismatched_keys"])
    _check_unused(folder, config, backbone.base_model_prefix, report["unexpected_keys"])
    check_finite(backbone, folder)
    loaded: PreTrainedModel = backbone.eval()
    return loaded


def check_finite(module: nn.Module, folder: Path) -> None:
    """Raise `ModelError` where a weight that was read from `folder` is not a number: so would be all vectors."""
    for name, weight in module.state_dict().items():
        if not torch.isfinite(weight).all():
            raise ModelError(
                f"The weight {name} in {folder} holds NaN or infinity.", hint="Use an undamaged checkpoint."
            )


def _check_there(folder: Path) -> None:
    """Raise `ModelError` where there are no weights of a form that is read, as beside a graph or a GGUF file."""
    if not any(file.is_file() for kind in _WEIGHTS for file in folder.glob(kind)):
        raise ModelError(
            f"{folder} has no weights of a form that is read.",
            hint="They are model.safetensors or pytorch_model.bin, or several files of these kinds with an index; "
            "download or save the model so.",
        )


def _check_types(folder: Path) -> None:
    """Raise `ModelError` where a weight is of whole numbers: as floats these would be any weights at all.

    Also where a file names more weights than are compared with a model's in seconds.
    """
    for file in sorted(folder.glob("*.safetensors")):
        with contextlib.suppress(OSError, SafetensorError), safe_open(file, "pt") as weights:  # said by who reads it
            names = weights.keys()
            if len(names) > _MOST_WEIGHTS:
                raise ModelError(
                    f"{file} names {len(names):,} weights.", hint=f"At most {_MOST_WEIGHTS:,} of a file are read."
                )
            for name in names:
                kind = weights.get_slice(name).get_dtype()
                if name.endswith((".weight", ".bias")) and kind.startswith(("I", "U", "BOOL")):
                    raise ModelError(
                        f"The weight {harmless(name)} in {file} is of the type {kind}, not of floats.",
                        hint="Use a checkpoint that is not quantised.",
                    )


def _check_size(folder: Path, config: PretrainedConfig) -> None:
    """Raise `ModelError` where a configuration describes more than the files of weights can hold, before it is built.

    A weight takes a byte or more, whatever its format; so no more memory is asked for than four times those files.
    """
    stored = sum(file.stat().st_size for kind in _WEIGHTS for file in folder.glob(kind) if file.is_file())
    try:
        described = _described(config.to_json_string(use_diff=False))
    except Exception as error:  # sizes that do not fit together are found by each layer in its own way
        raise ModelError(
            f"No model can be built from {folder / 'config.json'}: {first_line(error)}.", hint="Check its sizes."
        ) from error
    if stored and described > stored:  # that they are empty is said when they are read
        raise ModelError(
            f"{folder / 'config.json'} describes {described:,} weights, but the files of weights beside it have "
            f"{stored:,} bytes only.",
            hint="Configuration and weights belong to different models, or one was damaged: download both again.",
        )


@functools.lru_cache(maxsize=64)
def _described(config: str) -> int:
    """Number of weights of a model of this configuration in JSON, built without memory for them."""
    with quiet_transformers(), torch.device("meta"):
        model = AutoModel.from_config(AutoConfig.for_model(**json.loads(config)))
    return sum(weight.numel() for weight in model.parameters())


def _check_complete(folder: Path, missing: Iterable[str], mismatched: Iterable[Any]) -> None:
    wrong = [str(item[0] if isinstance(item, tuple) else item) for item in mismatched]
    for names, what in ((sorted(missing), "lack"), (sorted(wrong), "have another shape than config.json says for")):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise ModelError(
                f"The weights in {folder} {what} {names[0]}{more}.",
                hint="Use a complete checkpoint: a missing weight would be random.",
            )


def _check_unused(folder: Path, config: PretrainedConfig, prefix: str, unused: Iterable[str]) -> None:
    """Raise `ModelError` where weights of blocks are not used: behind the last block, or of a part it does not compute.

    unused: names of weights that the model has no place for; heads, poolers and old buffers are passed over.
    """
    block = re.compile(rf"(?:{re.escape(prefix)}\.)?{re.escape(family_of(config).blocks)}\.(\d+)\.")
    places = {name: int(place[1]) for name in sorted(unused) if (place := block.match(name))}
    further = next((name for name, place in places.items() if place >= config.num_hidden_layers), None)
    if further is not None:
        raise ModelError(
            f"{folder / 'config.json'} describes {config.num_hidden_layers} blocks, but the weights beside it go on: "
            f"{harmless(further)} is one of them.",
            hint="Mend the number there or download the model again; `truncate()` makes a whole model shorter.",
        )
    unknown = next((name for name in places if not _UNNEEDED.search(name)), None)
    if unknown is not None:
        raise ModelError(
            f"The weights in {folder} hold {harmless(unknown)}, for which {type(config).__name__} has no place: the "
            "model would compute without it.",
            hint="Use a checkpoint whose blocks are those that transformers computes for its architecture.",
        )


def _check_positions(folder: Path, config: PretrainedConfig) -> None:
    """Raise `ModelError` for a kind of positions that the class does not compute: it would use absolute ones."""
    kind = getattr(config, "position_embedding_type", None)
    rotary = ("rope", "rotary") if hasattr(config, "rope_parameters") else ()
    if kind not in (None, "absolute", *rotary):
        raise ModelError(
            f"{folder / 'config.json'} says position_embedding_type {shown(kind)}, which {type(config).__name__} does "
            "not compute.",
            hint="Use a model with absolute positions.",
        )
