"""What an export reports: what is in the graph, what was checked, what it scores."""

from dataclasses import dataclass

from truncate_kit.results import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Result):
    """One comparison of the graph with the encoder.

    difference: the largest over all entries; absolute where the graph normalises, relative to the largest entry of
    the encoder's vectors where it does not.
    """

    name: str
    difference: float
    limit: float


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
class ExportReport(Result):
    """One exported graph.

    layers: blocks in it. width: numbers per vector. fused_attention_expected, …_found: nodes that hold a whole
    attention. file_bytes: the graph with its weights. task: None where no pairs were given.
    """

    model: str
    family: str
    layers: int
    width: int
    pooling: str
    normalized: bool
    max_length: int
    file: str
    file_bytes: int
    opset: int
    versions: dict[str, str]
    fused_attention_expected: int
    fused_attention_found: int
    checks: tuple[Check, ...]
    task: TaskScore | None

    def fusion_sentence(self) -> str:
        """How attention is computed in the graph, as one sentence for the user."""
        if self.fused_attention_expected:
            return f"Attention is fused: {self.fused_attention_found} nodes, one per layer."
        if self.layers:
            return f"Attention is not fused: ONNX Runtime has no kernel for that of {self.family}; it runs in parts."
        return "There is no attention in a model cut at its embeddings."
