"""The labels of one version's series on the metrics page, as text."""

from __future__ import annotations

from functools import cached_property

from pybackend.engine.figures import VersionFigures
from pybackend.observability.metrics import labels_text


class ModelLabels:
    """The labels of one version. Each text is made once, when the page first needs it."""

    def __init__(self, version: VersionFigures) -> None:
        self._name, self._version, self._tags = version.name, version.version, version.config.metric_tags
        self._namespace = version.namespace
        self._texts: dict[tuple[str, str], str] = {}

    @cached_property
    def _labels(self) -> dict[str, str]:
        tags = {f"_{key}": value for key, value in self._tags.items()}
        namespace = {"namespace": self._namespace} if self._namespace else {}
        return {"model": self._name, "version": self._version, **namespace, **tags}

    @cached_property
    def plain(self) -> str:
        """The labels that all series of the version have."""
        return labels_text(self._labels)

    def with_label(self, name: str, value: str) -> str:
        """These labels and one more, of which there must be few values: all texts are kept."""
        text = self._texts.get((name, value))
        if text is None:
            text = self._texts[name, value] = labels_text({**self._labels, name: value})
        return text
