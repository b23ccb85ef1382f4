"""The cells of the table of an analysis; the command line draws them."""

from collections.abc import Sequence

from truncate_kit.analysis.result import LayerProfile, called
from truncate_kit.data.retrieval import SEARCH_METRICS
from truncate_kit.wording import NONE, TableCells, number


def analysis_table(profile: LayerProfile) -> TableCells:
    """One row per layer, the most wanted columns first.

    What was not measured has no column, and what is to the next layer is missing for the last.
    """
    other = called(profile.reference) if profile.reference else f"its own layer {profile.depth // 2}"
    how = f"{profile.estimator} {profile.kernel} CKA, {profile.pooling} pooling"
    return TableCells(f"{profile.title} against {other}: {how}", _columns(profile), _rows(profile))


def _columns(profile: LayerProfile) -> tuple[str, ...]:
    cka = "CKA" if profile.cka.low is None else f"CKA ({100 * profile.level:g} %)"
    return (
        "layer",
        *(["Spearman"] if profile.spearman is not None else []),
        *(SEARCH_METRICS[metric] for metric in profile.searched),
        cka,
        "parameters",
        *(["reference layer"] if _mapped(profile) else []),
        *([f"CKA without {profile.outliers} outliers"] if profile.cka_without_outliers is not None else []),
        "Block Influence",
        "angular distance",
        "effective rank",
        "anisotropy",
    )


def _rows(profile: LayerProfile) -> list[tuple[str, ...]]:
    rows = []
    for layer in range(profile.depth + 1):
        without = profile.cka_without_outliers
        rows.append(
            (
                _name(profile, layer),
                *([] if profile.spearman is None else [_at(profile.spearman, layer, ".1f")]),
                *(_at(values, layer, ".1f") for values in profile.searched.values()),
                _with_reach(profile, layer),
                number(profile.parameters[layer], ","),
                *([str(profile.cka.reference_layers[layer])] if _mapped(profile) else []),
                *([] if without is None else [_at(without.values, layer, ".3f")]),
                _at(profile.block_influence, layer, ".3f"),
                _at(profile.angular_distance, layer, ".3f"),
                _at(profile.effective_rank, layer, ".1f"),
                _at(profile.anisotropy, layer, ".3f"),
            )
        )
    return rows


def _name(profile: LayerProfile, layer: int) -> str:
    """The layer's number, the block it ends in where some were left out, and whether a drop is expected there."""
    drop = profile.drop.from_layer if profile.drop is not None else None
    said = [f"block {profile.last_blocks[layer]}"] if layer and profile.kept_blocks is not None else []
    said += ["drop"] if drop is not None and layer >= drop else []
    return f"{layer} ({', '.join(said)})" if said else f"{layer}"


def _mapped(profile: LayerProfile) -> bool:
    return profile.reference is not None and profile.reference_depth != profile.depth


def _with_reach(profile: LayerProfile, layer: int) -> str:
    value, high = profile.cka.values[layer], None if profile.cka.high is None else profile.cka.high[layer]
    if value is None:
        return NONE
    return f"{value:.3f}" if high is None else f"{value:.3f} ± {high - value:.3f}"


def _at(values: Sequence[float | None], layer: int, form: str) -> str:
    return number(values[layer] if layer < len(values) else None, form)
