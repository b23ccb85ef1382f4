"""Sets of the Hugging Face hub, through `datasets`: data only, no code from the hub is run."""

import re
from pathlib import Path

from truncate_kit.data.files import PAIR_FORMATS, TEXT_FORMAT, format_of
from truncate_kit.data.scales import Scale
from truncate_kit.data.tables import Table, table_from_arrow
from truncate_kit.errors import DataError, first_line
from truncate_kit.extras import errors_only

_ALIASES = {
    "stsb": "sentence-transformers/stsb",
    "stsb-de": "PhilipMay/stsb_multi_mt:de",
    "stsb-es": "PhilipMay/stsb_multi_mt:es",
    "korsts": "dkoterwa/kor-sts",
}
_KNOWN_SCALES = {name: Scale(0.0, 5.0, "known") for name in _ALIASES.values()} | {
    "sentence-transformers/stsb": Scale(0.0, 1.0, "known")  # scores there are already divided by 5
}
_SPLITS = {"train": ("train",), "dev": ("validation", "dev", "valid"), "test": ("test",)}
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?(:[\w.-]+)?")


def hub_name(name: str) -> str:
    """The full name on the hub of the STS Benchmark by language: "stsb", "stsb-de", "stsb-es" and "korsts"."""
    return _ALIASES.get(name, name)


def known_scale(name: str) -> Scale | None:
    """The scale of a set whose full hub name is known here, or None."""
    return _KNOWN_SCALES.get(name)


def is_hub_name(name: str) -> bool:
    """Whether `name` could be a set on the hub rather than a path that does not exist."""
    return _NAME.fullmatch(name) is not None and format_of(Path(name)) not in (*PAIR_FORMATS, TEXT_FORMAT)


def read_hub(name: str) -> dict[str, Table]:
    """The splits of a set by our split names.

    Args:
        name: Full, with ":" and a configuration.

    Raises:
        DataError: The hub does not give it, or none of its splits is one of ours.
    """
    import datasets
    from datasets.utils.logging import disable_progress_bar

    try:
        disable_progress_bar()
        with errors_only("huggingface_hub"):  # no line for each time that it is asked again
            loaded = datasets.load_dataset(*name.split(":"))
    except (datasets.exceptions.DatasetNotFoundError, ConnectionError, OSError, ValueError) as error:
        raise DataError(
            f"{name!r} is no path here, and the hub did not give it: {first_line(error)}.",
            hint="Check the spelling and the connection (HF_HUB_OFFLINE must not be set), write OWNER/NAME:CONFIG for "
            "a set that has several, or give a file or folder; 'bundled' always works.",
        ) from error
    found = {
        split: table_from_arrow(f"{name} ({theirs})", loaded[theirs].data.table)
        for split, candidates in _SPLITS.items()
        for theirs in candidates
        if theirs in loaded
    }
    if not found:
        raise DataError(
            f"{name!r} has the splits {', '.join(loaded)}; none of them is train, validation or test.",
            hint="Save the split you need as a CSV or Parquet file and give that.",
        )
    return found
