"""The hooks by which transformers hands over hidden states."""

from torch import nn

_MODULE = "transformers.utils.output_capturing"
_MARK = "_output_capturing_hooks_installed"


def forget_capturing(model: nn.Module) -> None:
    """Remove the hooks that a call for hidden states left in a model; the next such call installs them again.

    They are local functions of transformers, which cannot be pickled, and so not be sent to another process.
    """
    for module in model.modules():
        for number, hook in list(module._forward_hooks.items()):
            if getattr(hook, "__module__", None) == _MODULE:
                del module._forward_hooks[number]
        if getattr(module, _MARK, False):
            setattr(module, _MARK, False)
