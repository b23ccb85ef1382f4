"""The workspace of a command: which model and data it takes, and what it says of them."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from truncate_kit.core.errors import DataError, UsageError
from truncate_kit.core.files import run_lock
from truncate_kit.core.origin import read_origin
from truncate_kit.core.workspace import DataSource, ModelSource
from truncate_kit.core.workspace import Workspace as Places

from .console import note, say
from .options import names_in, refuse, scale_in

if TYPE_CHECKING:
    from truncate_kit.data.pairs import PairSplits
    from truncate_kit.export.runtime import OnnxEncoder
    from truncate_kit.models.encoder import Encoder


class Workspace(Places):
    """A workspace that says on stderr what it takes, unless it is quiet."""

    def __init__(self, folder: Path, *, quiet: bool = False) -> None:
        super().__init__(folder)
        self.quiet = quiet

    def held(self) -> AbstractContextManager[None]:
        """Nobody else writes here meanwhile, so the models stay what they are. Raises `FileProblemError`."""
        return run_lock(self.folder)

    def note(self, *texts: str | None) -> None:
        """Sentences beside the result, on stderr; None says nothing."""
        note(*texts, quiet=self.quiet)

    def say(self, *texts: str) -> None:
        """Sentences of the result, on stdout."""
        if not self.quiet:
            say(*texts)

    def starting_model(
        self, named: str | None, pooling: str | None, max_length: int | None, *, or_miniature: bool = False
    ) -> ModelSource:
        """The model named, else the last command's, else the miniature (or `UsageError`, unless asked); says which."""
        if named is not None:
            return ModelSource(named, pooling, max_length)
        last = self.remembered().model
        if last is not None:
            source = ModelSource(
                last.name, pooling or last.pooling, last.max_length if max_length is None else max_length
            )
            read = [f"pooling {source.pooling}"] if source.pooling else []
            read += [f"at most {source.max_length} tokens"] if source.max_length else []
            how = f" ({', '.join(read)})" if read else ""
            self.note(f"Model: {last.name}{how}, as in the last command (name another one to change it).")
            return source
        from truncate_kit.core.origin import DEFAULT_MINIATURE

        if not or_miniature:
            raise UsageError(
                f"No model is named, and no command has worked on one in {self.folder}.",
                hint=f"Name a folder, a hub name or a bundled miniature, such as {DEFAULT_MINIATURE}.",
            )
        self.note(f"No model was named: this is the bundled miniature {DEFAULT_MINIATURE}.")
        return ModelSource(DEFAULT_MINIATURE, pooling, max_length)

    def finished_model(
        self, named: str | None, pooling: str | None = None, max_length: int | None = None
    ) -> ModelSource:
        """The model named, else the lean one here; says which. Raises `UsageError` where there is neither."""
        if named is not None:
            return ModelSource(named, pooling, max_length)
        if not self.lean.is_dir():
            others = [str(path) for path in (self.combined, self.frozen) if path.is_dir()]
            raise UsageError(
                f"No model is named, and there is no lean model {self.lean}.",
                hint=f"Name {' or '.join(others) or 'one'}, or make it with finetune, contrast, distill or cut.",
            )
        self.note_lean()
        return ModelSource(str(self.lean), pooling, max_length)

    def load_text_encoder(
        self, source: ModelSource, runtime: str | None, graph: str | None, threads: int | None, device: str | None
    ) -> "Encoder | OnnxEncoder":
        """The model to encode with, in torch or as a graph."""
        from truncate_kit.export.runtime import load_text_encoder
        from truncate_kit.models.encoder import Encoder
        from truncate_kit.models.loading import dropped_head

        own = {"pooling": source.pooling, "precision": graph, "device": device}
        encoder = load_text_encoder(source.name, runtime=runtime, max_length=source.max_length, threads=threads, **own)
        if isinstance(encoder, Encoder):
            self.note(dropped_head(encoder))
        return encoder

    def load(self, source: ModelSource, *, device: str | None = None, precision: str = "fp32") -> "Encoder":
        """The encoder, on its device. Raises `DeviceError` where that cannot compute in `precision`."""
        from truncate_kit.core.hardware import check_precision
        from truncate_kit.models.loading import dropped_head, load_encoder

        encoder = load_encoder(source.name, pooling=source.pooling, max_length=source.max_length, device=device)
        self.note(dropped_head(encoder))
        check_precision(precision, encoder.device)
        if precision == "bf16" and encoder.device.type == "cpu":
            from truncate_kit.bench.timing import slower_in_bf16

            if slower := slower_in_bf16():
                self.note(f"{slower} Leave --precision out.")
        return encoder

    def note_lean(self) -> None:
        """Say which model is in `lean`, and where the last command worked on another one."""
        last, made = self.remembered().model, read_origin(self.lean)
        self.note(f"Model: {self.lean}{'' if made is None else f': {made.words}'}.")
        if made is not None and last is not None and last.name not in _names(made.model):
            self.note(f"It does not come from {last.name}, the last command's model: make one of that first.")

    def note_replaced(self, source: ModelSource, *, distilled: bool = False) -> None:
        """Say which model that of `source` replaces here. Raises `UsageError` where it could not come back."""
        self.note(self.replaced_by(source.name, distilled=distilled))

    def data(
        self, named: str | None, columns: str | None, scale: str | None, *, classes: bool = False
    ) -> tuple["PairSplits", DataSource]:
        """The pairs named, else the last ones, else the bundled set, and where they come from; says all."""
        from truncate_kit.data.pairs import BUNDLED, load_pairs
        from truncate_kit.data.retrieval import is_retrieval_folder
        from truncate_kit.report.view import data_sentences

        source = DataSource(named, names_in(columns), scale_in(scale))
        if named is None:
            last = self.remembered().data
            source = DataSource(last.name, source.columns or last.columns, source.scale or last.scale)
        if source.name is not None and is_retrieval_folder(source.name):
            hint = "Give graded pairs; analyze, evaluate, compare, finetune, distill, export and bench take both."
            raise DataError(f"{source.name} holds queries and documents, not graded pairs.", hint=hint)
        how = {"columns": source.columns, "scale": source.scale, "classes": classes}
        splits = load_pairs(source.name or BUNDLED, divide=False, **how)  # type: ignore[arg-type]  # each its own
        self.note(*data_sentences(splits))
        return splits, source

    def queries(self, named: str | None, columns: str | None, scale: str | None) -> str | None:
        """The folder of a retrieval set that is named, else that of the last command, where that took one; says so.

        Raises `UsageError` for columns or a scale of such a set, which has neither.
        """
        from truncate_kit.data.retrieval import is_retrieval_folder

        found = self.remembered().queries if named is None else named if is_retrieval_folder(named) else None
        if found is None:
            return None
        refuse("graded pairs", columns=columns, scale=scale)
        if named is not None:
            return found
        if not is_retrieval_folder(found):
            raise UsageError(
                f"{found}, whose queries the last command took, is no longer there.",
                hint="Name other data, or the folder where it is now.",
            )
        self.note(f"Data: {found}, as in the last command (name other data to change it).")
        return found

    def divided(self, splits: "PairSplits") -> "PairSplits":
        """With train, dev and test, which are taken out of a set that lacks them; says so."""
        from truncate_kit.data.pairs import complete_splits
        from truncate_kit.report.view import overlap_warning

        found = self._noted(splits, complete_splits(splits))
        warning = overlap_warning(found.overlap)
        if warning is not None and found is not splits:  # what was there before has said it
            self.note(warning)
        return found

    def unseen(self, splits: "PairSplits", *models: str) -> "PairSplits":
        """What none of the models was trained on; says so where that is a part of `splits`."""
        from truncate_kit.data.seen import unseen

        for model in models:
            splits = self._noted(splits, unseen(splits, model))
        return splits

    def _noted(self, before: "PairSplits", after: "PairSplits") -> "PairSplits":
        self.note(*after.notes[len(before.notes) :])
        return after


def _names(model: str) -> tuple[str, str]:
    return model, str(Path(model).resolve())
