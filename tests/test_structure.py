"""The house: imports lead down and never in a circle, what shows settings loads no torch, modules can be read."""

import ast
import io
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATHS = [path for folder in ("truncate_kit", "cli") for path in sorted((ROOT / folder).rglob("*.py"))]
FILES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in PATHS}
FLOORS = ["cli __main__", "report", "methods bench", "training analysis export", "evaluation", "models data doctor"]
"""From the top; every other module of the package stands below them."""

LONG = {"cli.train", "cli.measure", "truncate_kit.bench.run", "truncate_kit.methods.tmft.finetune",
        "truncate_kit.analysis.profile"}  # fmt: skip
"""Longer than the limits."""


def imported(module: str) -> Iterator[str]:
    """Yield what this module imports, also inside functions, and by name where it calls `import_module`."""
    text = FILES[module].read_text().replace("truncate_kit_cli", "cli")
    tree, package = ast.parse(text), module if FILES[module].stem == "__init__" else module.rpartition(".")[0]
    typing = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    passed_over = {inner for node in typing for inner in ast.walk(node)}
    by_name = "import_module(" in text and not module.endswith((".view", ".suite"))  # registers of their rooms
    for node in (node for node in ast.walk(tree) if node not in passed_over):
        if isinstance(node, ast.ImportFrom):
            base = f"{package}.{node.module or ''}".rstrip(".") if node.level else str(node.module)
            yield from (name if (name := f"{base}.{alias.name}") in FILES else base for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and by_name:
            yield from (node.value, f"{package}.{node.value.partition('.')[0]}")


def floor(module: str) -> int:
    part = module.removeprefix("truncate_kit.").partition(".")[0]
    return min([place for place, names in enumerate(FLOORS) if part in names.split()], default=len(FLOORS))


def test_imports_lead_down_and_never_in_a_circle():
    graph = {one: {*imported(one)} & FILES.keys() - {one, "truncate_kit"} for one in FILES.keys() - {"truncate_kit"}}
    assert [(one, other) for one in graph for other in graph[one] if floor(other) < floor(one)] == []
    TopologicalSorter(graph).prepare()


def code_lines(text: str) -> Iterator[int]:
    """Yield the lines with a token that is no comment, docstring or import."""
    quiet = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = [one for one in tokenize.generate_tokens(io.StringIO(text).readline) if one.type not in quiet]
    left_out = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)
                or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)))  # fmt: skip
    without = {line for node in left_out for line in range(node.lineno, node.end_lineno + 1)}
    yield from {line for one in tokens for line in range(one.start[0], one.end[0] + 1)} - without


def test_a_module_has_450_lines_of_code_at_most_and_a_function_60():
    found = set()
    for module, path in FILES.items():
        lines, tree = {*code_lines(path.read_text())}, ast.walk(ast.parse(path.read_text()))
        functions = [node for node in tree if isinstance(node, ast.FunctionDef)]
        longest = max((len(lines & {*range(node.lineno, node.end_lineno + 1)}) for node in functions), default=0)
        found |= {module} if len(lines) > 450 or longest > 60 else set()
    assert found <= LONG


def test_help_refusals_settings_and_results_load_no_torch():
    modules = [one for one in FILES if one.endswith((".settings", ".result", "report.view"))]
    code = f"""
import importlib, sys
sys.modules |= dict.fromkeys(["torch", "transformers", "datasets", "scipy", "sklearn", "mteb"])  # whoever imports fails
for module in {["truncate_kit", *modules]}:
    importlib.import_module(module)
from truncate_kit_cli.app import COMMANDS, main
refused = ["distill mini-bert --texts x --speedup 20", "distill mini-bert --texts gone.txt",
           "finetune --workspace {FILES["cli.app"]}/x", "analyze --device toaster", "bench --threads 0",
           "export --precision fp8", "evaluate --graph fp8", "finetune --strategy gided"]
shown = ["--version", *(f"{{name}} --help" for name in COMMANDS)]
for words, codes in [*((words, [0]) for words in shown), *((words, [1, 2]) for words in refused)]:
    try:
        main(words.split())
    except SystemExit as end:
        assert (end.code or 0) in codes, words
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
