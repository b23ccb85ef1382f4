"""What is typed most, for the end of each command's help."""

EXAMPLES = {
    "analyze": (
        "truncate-kit analyze google/electra-base-discriminator --reference bert-base-cased --data stsb",
        "truncate-kit analyze MODEL --data FOLDER            # queries and documents",
    ),
    "finetune": (
        "truncate-kit finetune google/electra-base-discriminator --data stsb",
        "truncate-kit finetune MODEL --data mine.csv --columns left,right,grade --layer 3,6",
    ),
    "export": (
        "truncate-kit export --onnx",
        "truncate-kit export --onnx --precision int8 --data pairs.csv",
    ),
    "bench": (
        "truncate-kit bench --quick",
        "truncate-kit bench LEAN --full FULL --data pairs.csv --backends torch-fp32,onnx-fp32",
    ),
    "demo": ("truncate-kit demo",),
    "distill": (
        "truncate-kit distill sentence-transformers/all-MiniLM-L6-v2 --texts sentences.txt",
        "truncate-kit distill MODEL --texts sentences.txt --speedup 2 --exclude test.csv",
    ),
    "contrast": (
        "truncate-kit contrast MODEL --triplets nli.csv",
        "truncate-kit contrast MODEL --objective dropout --texts raw.txt",
    ),
    "freeze": ("truncate-kit freeze MODEL --data pairs.csv",),
    "combine": ("truncate-kit combine MODEL --data stsb",),
    "cut": (
        "truncate-kit cut MODEL --layer 6",
        "truncate-kit cut MODEL --blocks 1..3,6 --vocabulary-from texts.txt",
    ),
    "evaluate": (
        "truncate-kit evaluate MODEL --data pairs.csv",
        "truncate-kit evaluate exported/lean --data FOLDER --graph int8",
    ),
    "compare": ("truncate-kit compare FULL exported/lean --data FOLDER",),
    "encode": (
        "truncate-kit encode texts.txt --out vectors.npy",
        "truncate-kit encode - --model mini-bert --out two.npy < texts.txt",
    ),
    "study": ("truncate-kit study study.toml --workers 2",),
    "report": (
        "truncate-kit report --open",
        "truncate-kit report A B                             # two workspaces",
    ),
    "status": ("truncate-kit status --clean",),
    "doctor": ("truncate-kit doctor --device cuda --runtime torch",),
}
"""Lines by command."""
