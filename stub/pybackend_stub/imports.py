"""Acts when a model imports a module; models that never do pay nothing for it."""

import importlib
import importlib.util
import sys
from typing import Any, Callable, Dict


def when_imported(name: str, module: str, *arguments: Any) -> None:
    """Call ``take_over`` of a module of ours when another one has been imported: now, or right after its first import."""

    def function() -> None:
        importlib.import_module(module).take_over(*arguments)

    if name in sys.modules:
        function()
        return
    _awaited[name] = function
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


_awaited: "Dict[str, Callable[[], None]]" = {}


class _Finder:
    """Notices the first imports of the awaited modules."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Let the other finders find it, and act after its import."""
        function = _awaited.pop(name, None)
        if function is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or not hasattr(spec.loader, "exec_module"):
            return spec
        loader: Any = spec.loader
        run = loader.exec_module

        def run_and_act(module: Any) -> None:
            run(module)
            function()

        loader.exec_module = run_and_act
        return spec


_finder = _Finder()
