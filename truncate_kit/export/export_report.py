"""What an export reports: what is in the graph, what was checked, what it scores."""

from dataclasses import dataclass, field

from truncate_kit.precisions import Precision, Target
from truncate_kit.results import Result
from truncate_kit.wording import FEWEST_COMPARED, counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Result):
    """One comparison of the graph with the encoder."""

    name: str
    # Largest over all entries; relative to the largest entry of the encoder's vectors where they have not length 1.
    difference: float
    limit: float | None  # None where the difference is stated and the score decides (int8)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScore(Result):
    """Correlations (× 100) on graded pairs, of the encoder in torch and of its graph."""

    data: str
    num_pairs: int
    spearman_before: float
    spearman_after: float
    pearson_before: float
    pearson_after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Invariance(Result):
    """How far the vector of a text depends on what it is run with: a batch of like lengths, or much padding."""

    data: str
    num_texts: int
    num_pairs: int
    batch_difference: float  # largest change of an entry of the unit vector
    batch_cosine: float  # lowest similarity to the text run alone
    padding_difference: float
    padding_cosine: float
    spearman_alone: float  # × 100
    spearman_batched: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatLayer(Result):
    """A layer that stays in float32."""

    layer: str
    harm: float | None  # mean squared distance of unit vectors when it alone is in int8; None where they are no numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization(Result):
    """What is in int8 and how that was found; Spearman points are those lost against the float graph."""

    layers: int  # number of those that int8 could take over
    in_float: tuple[FloatLayer, ...]  # those that stay in float32
    weight_bits: int  # 7 where the processor lacks the instructions
    instructions: str | None  # of the processor for int8, None without them
    budget: float  # points that may be lost on the pairs searched on
    searched_on: str
    num_pairs: int
    drop_all_int8: float | None  # points lost with every layer in int8, None where the score is undefined
    drop: float  # points lost as exported
    why: str  # the reason for the layers in float, one sentence


def _of_few(found: Quantization) -> str:
    """That a loss on a handful of pairs decides nothing; empty where there are enough."""
    if found.num_pairs >= FEWEST_COMPARED:
        return ""
    pairs = counted(found.num_pairs, "pair")
    return f" {pairs} {'is' if found.num_pairs == 1 else 'are'} too few for that to say what eight bits cost."


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfPrecision(Result):
    """What is in float16."""

    islands: dict[str, int]  # operators that stay in float32, with their number
    why: str
    # Largest magnitude of any float16 value over the longest and oddest inputs; float16 ends at 65,504.
    largest_value: float
    largest_at: str  # the node that gives it


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport(Result):
    """One exported graph."""

    model: str
    encoder: str  # digest, see `encoder_digest`
    precision: Precision
    target: Target
    family: str
    layers: int
    width: int
    pooling: str
    normalized: bool
    max_length: int
    file: str
    file_bytes: int  # of the graph with its weights
    opset: int
    versions: dict[str, str]
    fused_attention_expected: int  # number of nodes that should hold a whole attention
    fused_attention_found: int  # number of those that do
    fused_nodes: dict[str, int]  # ONNX Runtime's own operators in the graph, with their number
    mask: str  # the form in which attention gets the padding
    mask_reason: str
    sha256: str
    checks: tuple[Check, ...]
    task: TaskScore | None  # None where no pairs were given
    invariance: Invariance | None = None
    quantization: Quantization | None = None
    half: HalfPrecision | None = None
    weights_file: str | None = None  # None where the weights are in the graph's own file
    weights_sha256: str | None = None
    # Of the files beside it that hold the model it was made from, by their names.
    model_sha256: dict[str, str] = field(default_factory=dict)

    def fusion_sentence(self) -> str:
        """How attention is computed in the graph, as one sentence for the user."""
        if self.fused_attention_expected:
            return f"Attention is fused: {counted(self.fused_attention_found, 'node')}, one per layer."
        if self.layers:
            return f"Attention is not fused: ONNX Runtime has no kernel for that of {self.family}; it runs in parts."
        return "There is no attention in a model cut at its embeddings."

    def precision_sentences(self) -> tuple[str, ...]:
        """What int8 or fp16 did and what it cost, for the user; nothing in fp32."""
        sentences = []
        if self.quantization is not None:
            names = ", ".join(layer.layer for layer in self.quantization.in_float) or "none"
            bits = "" if self.quantization.weight_bits == 8 else " Weights have 7 bits: the processor lacks VNNI."
            sentences.append(f"{self.quantization.why} Layers in float: {names}.{bits}{_of_few(self.quantization)}")
        if self.half is not None:
            sentences.append(
                f"In float16 {self.half.why} The largest value in float16 is {self.half.largest_value:,.0f} of 65,504."
            )
        if self.invariance is not None:
            found = self.invariance
            sentences.append(
                f"The vector of a text in a batch has a cosine of at least {found.batch_cosine:.4f} with that of the "
                f"text alone, padded {found.padding_cosine:.4f}; Spearman alone {found.spearman_alone:.2f}, in batches "
                f"{found.spearman_batched:.2f} ({counted(found.num_pairs, 'pair')} of {found.data})."
            )
        return tuple(sentences)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exports(Result):
    """What export.json holds: one report for each graph in the folder."""

    graphs: tuple[ExportReport, ...]

    def of(self, file: str) -> ExportReport | None:
        """The report on the graph with this file name, None where there is none."""
        return next((report for report in self.graphs if report.file == file), None)

    def with_report(self, report: ExportReport) -> "Exports":
        """These reports with one added, or put in the place of the one on the same file."""
        others = tuple(item for item in self.graphs if item.file != report.file)
        return Exports(graphs=(*others, report))
