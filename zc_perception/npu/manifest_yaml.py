"""How ``model.yaml`` is read: as YAML, but numbers with an exponent are numbers as in YAML 1.2, and no key may stand twice."""

from __future__ import annotations

import re
from typing import Any

import yaml

# YAML 1.1, which PyYAML follows, wants a dot and a sign in the exponent: it takes 1e-1 for a text.
_FLOAT = re.compile(r'^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)[eE][-+]?[0-9]+$', re.ASCII)


class DuplicateKeyError(yaml.YAMLError):
    """A key stands twice in one mapping."""


class _Loader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Here and not where values are made: merged keys (``<<``) may stand again, and are no mistake."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen: dict[tuple[str, str], yaml.Node] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                first = seen.setdefault((key.tag, key.value), key)
                if first is not key:
                    lines = f'line {first.start_mark.line + 1} and again in line {key.start_mark.line + 1}'
                    raise DuplicateKeyError(f"key '{key.value}' stands in {lines}; leave one out")
        return node


_Loader.add_implicit_resolver('tag:yaml.org,2002:float', _FLOAT, list('-+.0123456789'))


def parse(text: str) -> Any:
    """The values of *text*.

    :raises yaml.YAMLError: it isn't YAML; :class:`DuplicateKeyError`: it says something twice.
    """
    return yaml.load(text, _Loader)
