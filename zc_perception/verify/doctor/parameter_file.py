"""Reads a ROS parameter file without ROS: which sections meet which node, and what the nodes would start with.

Source: the parameter files of ROS 2 (``rcl_yaml_param_parser``): namespaces may be nested, ``*`` is one token of a node's full name, ``**``
any number of them, nested parameters have dotted names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from zc_perception.errors import ConfigError

Section = tuple[str, dict[str, Any]]
"""Full name with wildcards, and its parameters."""


def read_parameter_file(path: str) -> Any:
    """Its YAML.

    :raises ConfigError: it can't be read, or is no YAML mapping.
    """
    try:
        values = yaml.safe_load(Path(path).read_text(encoding='utf-8'))
    except OSError as error:
        raise ConfigError(f"parameter file '{path}' can't be read: {error.strerror}; give --params-file another one") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"parameter file '{path}' is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, Mapping):
        raise ConfigError(f"parameter file '{path}' has no sections; it must have NODE: ros__parameters: NAME: VALUE")
    return values


def node_sections(values: Any) -> list[Section]:
    """All sections, in the order of the file."""
    return list(_sections(values, ''))


def _sections(values: Any, prefix: str) -> Iterator[Section]:
    if not isinstance(values, Mapping):
        return
    for key, value in values.items():
        name = f'{prefix}/{str(key).strip("/")}'
        if isinstance(value, Mapping) and 'ros__parameters' in value:
            parameters = value['ros__parameters']
            yield name, dict(_flat(parameters, '')) if isinstance(parameters, Mapping) else {}
        else:
            yield from _sections(value, name)


def _flat(values: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f'{prefix}{key}.')
        else:
            yield f'{prefix}{key}', value


def matches(section: str, node: str) -> bool:
    """Whether a section is for the node of that full name."""
    parts = section.split('/')[1:]
    pattern = ''.join('(/[^/]+)*' if part == '**' else '/' + re.escape(part).replace(r'\*', '[^/]*') for part in parts)
    return re.fullmatch(pattern, node) is not None


def parameters_of(node: str, sections: Sequence[Section]) -> dict[str, Any]:
    """What a node starts with: sections with wildcards first, then those that name it."""
    found: dict[str, Any] = {}
    for exact in (False, True):
        for section, values in sections:
            if ('*' not in section) is exact and matches(section, node):
                found |= values
    return found


def nodes_named(name: str, sections: Sequence[Section]) -> list[str]:
    """Full names of the nodes of that name which sections name without a wildcard."""
    return [section for section, _ in sections if '*' not in section and section.rsplit('/', 1)[-1] == name]
