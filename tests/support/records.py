"""Made values for the record of an export."""

from truncate_kit.export.record import Quantization

QUANTIZED = Quantization(
    layers=9, in_float={"encoder.layer.1.output.dense": 0.1}, weight_bits=7, instructions=None, budget=0.3,
    searched_on="dev", num_pairs=49, drop_all_int8=0.4, drop=0.2,
)  # fmt: skip
INVARIANCE = {
    "num_pairs": 49, "batch_difference": 1e-6, "batch_cosine": 0.999, "padding_difference": 1e-7,
    "padding_cosine": 0.999, "spearman_alone": 81.2, "spearman_batched": 81.1,
}  # fmt: skip
