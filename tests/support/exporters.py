"""What torch's and onnxscript's exporters do again and again, they do once; the graphs that they give stay the same."""

import functools
from collections.abc import Callable
from typing import Any

# Classes, names of their methods, and the methods that they had: those that decide what a graph becomes.
originals: list[tuple[type, str, Callable[..., Any]]] = []
# Of sizes, what tracing asks for tens of thousands of times: how long a batch is times the width, whether that is one.
_ARITHMETIC = ("add", "sub", "mul", "eq", "ne", "ge", "gt", "le", "lt")


@functools.cache
def spare_exporters() -> None:
    """Change both libraries in this process, from now on."""
    _make_tables_once()
    _compute_sizes_once()
    _look_for_patterns_where_they_may_be()


def _change(owner: type, name: str, method: Callable[..., Any]) -> None:
    originals.append((owner, name, getattr(owner, name)))
    setattr(owner, name, method)


def _make_tables_once() -> None:
    """Tables of operators are a fifth of a trace."""
    from torch._export import utils
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    utils._materialize_cpp_cia_ops = functools.cache(utils._materialize_cpp_cia_ops)
    make = functools.cache(ONNXRegistry.from_torchlib)
    ONNXRegistry.from_torchlib = staticmethod(make)  # type: ignore[method-assign]  # there is no other way in


def _compute_sizes_once() -> None:
    """Sizes of each tensor are expressions of the batch and the length, of which there are few: a sixth of a trace."""
    from torch.fx.experimental.sym_node import SymNode

    for name in _ARITHMETIC:
        _change(SymNode, f"_{name}", _remembering(name, getattr(SymNode, f"_{name}")))


def _remembering(name: str, compute: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The same function of two sizes, which computes once for each pair of expressions what depends on them alone."""
    from torch.fx.experimental.proxy_tensor import get_proxy_mode
    from torch.fx.experimental.sym_node import _NO_HINT, SymNode

    def parts(size: Any) -> tuple[object, ...]:
        return size.expr, size.pytype, size.hint, size._optimized_summation

    @functools.wraps(compute)
    def computed(self: Any, other: Any) -> Any:
        if get_proxy_mode():  # each operation becomes a node of the graph
            return compute(self, other)
        known: dict[Any, Any] = self.shape_env.__dict__.setdefault("_known_sizes", {})
        key = (name, *parts(self), *parts(other))
        if key not in known:
            known[key] = compute(self, other)
        size = known[key]
        hint = _NO_HINT if size.hint is None else size.hint
        summation = size._optimized_summation
        # A new one each time: who traces tells sizes apart by their identity.
        return SymNode(
            size._expr, size.shape_env, size.pytype, hint, fx_node=size.fx_node, optimized_summation=summation
        )

    return computed


def _look_for_patterns_where_they_may_be() -> None:
    """Compare a node with a pattern only where it is the operator at the first end of the pattern.

    For each node, and each pattern with several ends, onnxscript lists all nodes before it compares this one: that is a
    tenth of a trace of few nodes, and a third of one of many. What it notes of each comparison is another tenth.
    """
    from onnxscript.rewriter.pattern import RewriteRule, SimplePatternMatcher

    rewrite = RewriteRule.try_rewrite

    @functools.wraps(rewrite)
    def rewrite_if_it_may(self: Any, model: Any, graph: Any, node: Any, **options: Any) -> Any:
        if type(self._matcher) is SimplePatternMatcher and options.get("tracer") is None:
            end = self._matcher.pattern.output_nodes[0]
            if not (end.op.matches(node.op_type) and end.domain.matches(node.domain)):
                return None
        return rewrite(self, model, graph, node, **options)

    _change(RewriteRule, "try_rewrite", rewrite_if_it_may)
