"""Speed of truncated BERT-base and ELECTRA-base shapes on a GPU: every backend, lengths and batch sizes as served.

    python benchmarks/gpu/bench_cuda.py --out benchmarks/gpu/results

Compared, in one run and in turns: the full 12 layers and the cut at `--layer`, in torch fp32 and bf16, torch.compile
fp32 and bf16, and ONNX Runtime fp32 (extra `gpu`). Weights are random: speed does not depend on them, and there are no
scores. Each shape is written as one JSON with machine, versions, raw seconds and the share of the measured
matrix-product ceiling. `--device cpu --batch-sizes 1,2 --lengths 8 --width 64` tries the script out without a GPU.
"""

import argparse
import sys
from pathlib import Path

from transformers import BertConfig, ElectraConfig, PretrainedConfig

from truncate_kit.bench import bench
from truncate_kit.encoders import random_encoder, truncated_config
from truncate_kit.errors import TruncateKitError
from truncate_kit.report.bench_tables import absences, bench_tables, ceiling_sentences, machine_sentence


def shapes(width: int) -> dict[str, PretrainedConfig]:
    """BERT-base (cased) and ELECTRA-base (discriminator); a width other than 768 scales heads and blocks with it."""
    sizes = {
        "hidden_size": width,
        "num_attention_heads": max(2, width // 64),
        "intermediate_size": 4 * width,
        "num_hidden_layers": 12,
    }
    return {
        "bert-base": BertConfig(vocab_size=28996, **sizes),
        "electra-base": ElectraConfig(vocab_size=30522, embedding_size=width, **sizes),
    }


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers separated by commas."""
    return tuple(int(part) for part in text.split(","))


def arguments() -> argparse.Namespace:
    """What to measure and where to write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layer", type=int, default=4, help="layer of the lean cut, of 12")
    parser.add_argument("--lengths", type=numbers, default=(16, 32, 128, 512))
    parser.add_argument("--batch-sizes", type=numbers, default=(1, 32, 256))
    parser.add_argument("--backends", type=lambda text: text.split(","), default=["all"])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/gpu/results"))
    return parser.parse_args()


def main() -> None:
    """Bench each shape, print its tables, write its JSON."""
    options = arguments()
    for name, config in shapes(options.width).items():
        try:
            report = bench(
                random_encoder(truncated_config(config, options.layer), name=name),
                random_encoder(config, name=name),
                batch_sizes=options.batch_sizes,
                lengths=options.lengths,
                backends=options.backends,
                repeats=options.repeats,
                device=options.device,
            )
        except TruncateKitError as error:
            sys.exit(f"Error: {error}\nHint: {error.hint}")
        for table in bench_tables(report):
            print(f"\n{table.title}\n" + " | ".join(table.columns))
            print("\n".join(" | ".join(row) for row in table.rows))
        print("\n".join((machine_sentence(report), *ceiling_sentences(report), *absences(report), *report.notes)))
        report.write(options.out / f"{name}-layer{options.layer}-{options.device.replace(':', '')}.json")


if __name__ == "__main__":
    main()
