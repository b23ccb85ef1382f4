"""The folder in which one command finds what the one before it left."""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .options import columns_of, scale_of, triplet_columns_of
from .output import note
from .sources import DataSource, ModelSource, Sources, TripletSource

if TYPE_CHECKING:
    from truncate_kit.contrastive import ContrastiveResult
    from truncate_kit.data import PairSplits, TripletSet
    from truncate_kit.sweep import SweepResult


@dataclass(frozen=True, slots=True)
class Workspace:
    """Paths inside `out`, and what was worked on there."""

    out: Path

    @property
    def profile(self) -> Path:
        """The analysis."""
        return self.out / "analysis" / "profile.json"

    @property
    def analysis_curve(self) -> Path:
        """The figure of the analysis."""
        return self.out / "analysis" / "curve.png"

    @property
    def lean(self) -> Path:
        """The truncated, fine-tuned model."""
        return self.out / "lean"

    @property
    def full(self) -> Path:
        """The full model with the same fine-tuning."""
        return self.out / "full"

    @property
    def sweep_curve(self) -> Path:
        """The figure of the sweep."""
        return self.out / "curve.png"

    @property
    def sweep_result(self) -> Path:
        """What finetune found."""
        return self.out / "sweep.json"

    @property
    def contrastive_result(self) -> Path:
        """What contrastive training found; it tells of `lean` where no sweep does."""
        return self.out / "contrastive.json"

    @property
    def attention(self) -> Path:
        """How much each layer counts in the vectors of some sentences."""
        return self.out / "attention.json"

    @property
    def combined(self) -> Path:
        """The model whose vectors are made of a combination of layers."""
        return self.out / "combined"

    @property
    def combination(self) -> Path:
        """Folder of what the search of combinations found, and of its figures."""
        return self.out / "combination"

    @property
    def frozen(self) -> Path:
        """The frozen model with heads."""
        return self.out / "frozen"

    @property
    def frozen_report(self) -> Path:
        """Folder of what training heads found, of its figures, trials and cached states."""
        return self.out / "frozen-heads"

    @property
    def bench_report(self) -> Path:
        """The measurements."""
        return self.out / "bench.json"

    @property
    def bench_figure(self) -> Path:
        """The figure of the measurements."""
        return self.out / "bench.png"

    def suite(self, name: str) -> Path:
        """The scores of one suite."""
        return self.out / f"suite-{name}.json"

    @property
    def _sources(self) -> Path:
        return self.out / "workspace.json"

    def remembered(self) -> Sources:
        """What the last commands worked on."""
        return Sources.read(self._sources)

    def remember(
        self, model: ModelSource | None, data: DataSource | None, triplets: TripletSource | None = None
    ) -> None:
        """Note for the next command what this one worked on; None leaves what was noted before."""
        last = self.remembered()
        Sources(model or last.model, data or last.data, triplets or last.triplets).write(self._sources)

    def model(
        self, named: str | None, pooling: str | None = None, max_length: int | None = None, *, quiet: bool = False
    ) -> ModelSource:
        """The model to start from: the one named, else the last one, else the bundled miniature; says which."""
        if named is not None:
            return ModelSource(named, pooling, max_length)
        last = self.remembered().model
        if last is not None:
            source = ModelSource(last.name, pooling or last.pooling, max_length or last.max_length)
            read = [f"pooling {source.pooling}"] if source.pooling else []
            read += [f"at most {source.max_length} tokens"] if source.max_length else []
            how = f" ({', '.join(read)})" if read else ""
            note(f"Model: {last.name}{how}, as in the last command (name another one to change it).", quiet=quiet)
            return source
        from truncate_kit.encoders.miniatures import DEFAULT_MINIATURE

        note(f"No model was named: this is the bundled miniature {DEFAULT_MINIATURE}.", quiet=quiet)
        return ModelSource(DEFAULT_MINIATURE, pooling, max_length)

    def note_lean(self, *, quiet: bool = False) -> None:
        """Say which model is in `lean`, and where the last command worked on another one."""
        sweep, last = self.sweep(), self.remembered().model
        if sweep is None:
            note(f"Model: {self.lean}.", quiet=quiet)
            return
        note(f"Model: {self.lean}, which finetune cut from {sweep.model} at layer {sweep.chosen}.", quiet=quiet)
        if last is not None and last.name not in (sweep.model, str(Path(sweep.model).resolve())):
            note(f"It does not come from {last.name}, the last command's model: finetune that one first.", quiet=quiet)

    def sweep(self) -> "SweepResult | None":
        """What finetune found here; None where it has not ended yet."""
        from truncate_kit.sweep import SweepResult

        try:
            return SweepResult.read(self.sweep_result)
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def _contrastive(self) -> "ContrastiveResult | None":
        """What contrastive training found here; None where there was none."""
        from truncate_kit.contrastive import ContrastiveResult

        try:
            return ContrastiveResult.read(self.contrastive_result)
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def trained(self) -> dict[str, int]:
        """Fingerprints of the data that models here were trained on, and the seed that divided it."""
        from truncate_kit.frozen import FrozenReport
        from truncate_kit.frozen.run import REPORT_FILE

        found: dict[str, int] = {}
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            frozen = FrozenReport.read(self.frozen_report / REPORT_FILE)
            found[frozen.data_fingerprint] = frozen.settings.seeds[0]
        contrastive = self._contrastive()
        if contrastive is not None:
            found[contrastive.data_fingerprint] = 0
        sweep = self.sweep()
        if sweep is not None:
            found[sweep.data_fingerprint] = sweep.chosen_seed
        return found

    def data(
        self, named: str | None, columns: str | None, scale: str | None, *, classes: bool = False, quiet: bool = False
    ) -> tuple["PairSplits", DataSource]:
        """The pairs named, else the last ones, else the bundled set, and where they come from; says all."""
        from truncate_kit.data import BUNDLED, load_pairs

        source = DataSource(named, columns, scale)
        if named is None:
            last = self.remembered().data
            source = DataSource(last.name, columns or last.columns, scale or last.scale)
        splits = load_pairs(
            source.name or BUNDLED, columns=columns_of(source.columns), scale=scale_of(source.scale), classes=classes
        )
        for statement in splits.statements():
            note(statement, quiet=quiet)
        return splits, source

    def unseen(self, splits: "PairSplits", *, quiet: bool = False) -> "PairSplits":
        """`splits` divided as finetune divided them, where its model was trained on a part of them; says so.

        A set without a test split is scored as a whole; but what was trained on a part of it must not be.
        """
        from truncate_kit.data import complete_splits, splits_for
        from truncate_kit.errors import DataError

        trained = self.trained()
        if not trained or splits.test is not None or splits.train is None:
            return splits
        try:
            divided = complete_splits(splits)
        except DataError:  # too few pairs to have been trained on
            return splits
        if divided.fingerprint() not in trained:
            return splits
        divided = splits_for(divided, trained[divided.fingerprint()])
        for statement in divided.notes[len(splits.notes) if splits.shares is None else 0 :]:
            note(f"{statement} The models here were trained on the rest: only test counts.", quiet=quiet)
        return divided

    def note_combined(self, name: str, data: str, *, quiet: bool = False) -> None:
        """Say so where the layers of this model were chosen on pairs of the same set."""
        from truncate_kit.combine import CombinationReport

        if Path(name).resolve() != self.combined.resolve():
            return
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            found = CombinationReport.read(self.combination / "combination.json")
            if found.data == data:
                rest = "" if found.unseen is None else f"; on the {found.num_unseen:,} others it has {found.unseen:.2f}"
                note(f"Its layers were chosen on a part of these pairs{rest}.", quiet=quiet)

    def seen(self) -> tuple[str, frozenset[frozenset[str]]] | None:
        """What the models here were trained on, and its pairs, each as the set of its texts.

        The train and dev pairs of the data, and what stands in one row of the triplets of contrastive training. None
        where finetune has not ended here, or data or triplets are gone or no longer the same.
        """
        from truncate_kit.data import BUNDLED, complete_splits, load_pairs
        from truncate_kit.errors import TruncateKitError

        trained, last = self.trained(), self.remembered().data
        if not trained:
            return None
        try:
            splits = complete_splits(
                load_pairs(last.name or BUNDLED, columns=columns_of(last.columns), scale=scale_of(last.scale))
            )
            rows = self._contrasted()
        except TruncateKitError:
            return None
        if splits.fingerprint() not in trained:
            return None
        parts = (pairs for name, pairs in splits.items() if name != "test")
        found = frozenset(frozenset((pair.first, pair.second)) for part in parts for pair in part)
        return (splits.name, found) if rows is None else (f"{splits.name} and {rows.name}", found | rows.pairs())

    def _contrasted(self) -> "TripletSet | None":
        """The rows that contrastive training of the models here learned from, None where it learned from no pairs.

        Raises `DataError` where they are gone or no longer the same.
        """
        from truncate_kit.data import load_triplets
        from truncate_kit.errors import DataError

        result, source, sweep = self._contrastive(), self.remembered().triplets, self.sweep()
        if result is None or result.settings.objective == "dropout":  # single texts, each its own positive
            return None
        if sweep is not None and Path(sweep.model).resolve() != self.lean.resolve():  # its model took the other's place
            return None
        if source is not None:
            negatives = result.settings.objective == "hard-negatives"
            rows = load_triplets(source.name, columns=triplet_columns_of(source.columns), negatives=negatives)
            if rows.fingerprint() == result.rows_fingerprint:
                return rows
        raise DataError(
            f"The rows of {self.contrastive_result} are gone or no longer the same.", hint="Name them with --seen."
        )
