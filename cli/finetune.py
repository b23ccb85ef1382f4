"""`truncate-kit finetune`."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from .contrastive import (
    AttendOpt,
    ChunkOpt,
    ContrastiveOptions,
    JudgeEveryOpt,
    LastClsOpt,
    LiteralOpt,
    RemovePoolerOpt,
    SentencesOpt,
    TemperatureOpt,
    TrainedPoolingOpt,
    TripletColumnsOpt,
    TripletsOpt,
    is_contrastive,
    refuse_contrastive,
    run_contrastive,
)
from .engines import EngineOpt, GpusOpt, RayAddressOpt, WorkersOpt, check_alone, shares_work
from .frozen import FrozenOptions, MethodOpt, NliOpt, ScoreOpt, StepsOpt, check_method, run_frozen
from .options import (
    DEFAULT_OUT,
    ColumnsOpt,
    DataOpt,
    DeviceOpt,
    JsonOpt,
    MaxLengthOpt,
    ModelArg,
    OutOpt,
    ScaleOpt,
    SharedOptions,
    ThreadsOpt,
    refuse,
    use_threads,
)
from .priors import PriorEpochsOpt, PriorLayerOpt, PriorTextsOpt, PriorWordsOpt, check_priors
from .pushing import PublicOpt, PushOpt, check_push, push
from .tmft import TmftOptions, run_tmft
from .watching import TensorboardOpt

Options = TypeVar("Options", ContrastiveOptions, FrozenOptions, SharedOptions, TmftOptions)
PRECISIONS = "fp32, or bf16 autocast where the processor has it."


def finetune(
    model: ModelArg = None,
    method: MethodOpt = "tmft",
    layer: Annotated[str, typer.Option("--layer", help="auto, all, or layers such as 3, 3,6,9 or 2..5.")] = "auto",
    strategy: Annotated[
        str | None,
        typer.Option(
            "--strategy",
            help="Behind auto: rankings (default with labels), guided (default without), exhaustive, "
            "probe, multi-exit, cka, last or random.",
        ),
    ] = None,
    pick: Annotated[
        str | None, typer.Option("--pick", help="depth-bonus, best-dev, robust or small; by default the first.")
    ] = None,
    within: Annotated[
        float | None, typer.Option("--within", help="Points of the pick rule; by default 2.5, depth-bonus 4.")
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", help="How many seeds, from 0.")] = 3,
    epochs: Annotated[
        int | None, typer.Option("--epochs", help="The best on dev is kept; by default 10, for word pairs 50.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", help="Pairs per step; by default 32, for word pairs 128.")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", help="Peak rate; by default 2e-5, more for narrow models.")
    ] = None,
    precision: Annotated[str, typer.Option("--precision", help=PRECISIONS)] = "fp32",
    objective: Annotated[
        str,
        typer.Option(
            "--objective",
            help="cosine, paraphrase (labels 0, 1), entailment (classes), distill (raw text); contrastive: in-batch, "
            "hard-negatives, dropout (raw text).",
        ),
    ] = "cosine",
    texts: Annotated[
        Path | None,
        typer.Option("--texts", help="Raw text to distil from, for dropout, or for the autoencoders of frozen."),
    ] = None,
    prior_words: PriorWordsOpt = None,
    prior_texts: PriorTextsOpt = None,
    prior_layer: PriorLayerOpt = None,
    prior_epochs: PriorEpochsOpt = None,
    triplets: TripletsOpt = None,
    triplet_columns: TripletColumnsOpt = None,
    attend: AttendOpt = "both",
    last_cls: LastClsOpt = True,
    literal: LiteralOpt = False,
    remove_pooler: RemovePoolerOpt = False,
    temperature: TemperatureOpt = 0.05,
    chunk_size: ChunkOpt = None,
    judge_every: JudgeEveryOpt = 100,
    sentences: SentencesOpt = None,
    steps: StepsOpt = None,
    score: ScoreOpt = None,
    nli: NliOpt = None,
    data: DataOpt = None,
    columns: ColumnsOpt = None,
    scale: ScaleOpt = None,
    pooling: TrainedPoolingOpt = None,
    max_length: MaxLengthOpt = None,
    engine: EngineOpt = "local",
    workers: WorkersOpt = None,
    ray_address: RayAddressOpt = None,
    gpus_per_worker: GpusOpt = None,
    device: DeviceOpt = None,
    threads: ThreadsOpt = None,
    tensorboard: TensorboardOpt = False,
    push_to: PushOpt = None,
    public: PublicOpt = False,
    out: OutOpt = DEFAULT_OUT,
    as_json: JsonOpt = False,
) -> None:
    """Fine-tune the model cut at a layer, at several, or at the best one; save it beside the full model."""
    check_push(push_to, public)
    check_priors(prior_texts, prior_layer, prior_epochs)
    sharing = shares_work(engine, workers, ray_address, gpus_per_worker)
    told = locals()
    use_threads(threads)
    search: dict[str, object] = {"strategy": strategy, "pick": pick, "within": within, "tensorboard": tensorboard}
    search |= {"prior_words": prior_words, "prior_texts": prior_texts}
    contrast = _part(ContrastiveOptions, told)
    if check_method(method, steps=steps, score=score, nli=nli):
        refuse_contrastive(contrast, "--method frozen", "Leave it out.")
        refuse("--method tmft", objective=None if objective == "cosine" else objective, **search)
        check_alone(sharing, "heads over a frozen model are trained in one process")
        run_frozen(_part(FrozenOptions, told))
    elif is_contrastive(objective, pooling, contrast):
        refuse("an objective of TMFT", **search)
        check_alone(sharing, "contrastive training uses several processes where torchrun starts it")
        if run_contrastive(_part(SharedOptions, told), contrast):
            push(Path(out) / "lean", push_to, public, quiet=as_json)
    else:
        run_tmft(_part(TmftOptions, told))


def _part(kind: type[Options], told: dict[str, Any]) -> Options:
    """The options of one way to fine-tune, by their names, from all that the command was told."""
    return kind(**{field.name: told[field.name] for field in fields(kind)})
