"""Reads what the parameter file asks of the machine (:mod:`~zc_perception.machine.needs`). Needs no ROS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from zc_perception.camera.kinds import draws
from zc_perception.errors import ConfigError
from zc_perception.machine.needs import Needs, NodeNeed
from zc_perception.nodes.declarations import NODES
from zc_perception.nodes.namespaces import check_cameras
from zc_perception.nodes.params.yaml_file import (
    Section,
    nodes_named,
    read_parameter_yaml,
    values_of,
)


def uses_own_heap(camera: NodeNeed) -> bool:
    """Whether the package allocates the buffers of that camera: others bring their own."""
    return draws(camera.kind) or (camera.kind == 'v4l2' and camera['memory'] == 'import')


def node_need(kind: str, values: Mapping[str, Any], node: str = '') -> NodeNeed:
    """What a node would have of *values*: each that it takes, and its defaults in place of the others, which check ``parameters.file``
    tells.

    :param kind: ``capture`` or ``inference``.
    :param node: its full name.
    """
    taken: dict[str, Any] = {}
    specs = NODES[kind]
    for spec in specs:
        taken[spec.name] = spec.default
        if spec.name in values:
            try:
                taken[spec.name] = spec.convert(values[spec.name])
            except ConfigError:
                continue
    return NodeNeed(node or f'/{kind}', specs.own[0].name, taken)


def needs_for(
    path: str,
    cameras: Sequence[NodeNeed],
    inferences: Sequence[NodeNeed],
    *,
    cameras_given: bool = False,
) -> Needs:
    """What these nodes ask.

    :param path: of the parameter file.
    """
    heaps = dict.fromkeys(camera['heap'] for camera in cameras if uses_own_heap(camera))
    imports = any(i.kind == 'axl' for i in inferences) or any(
        c['memory'] == 'import' and c.kind == 'v4l2' for c in cameras
    )
    return Needs(path, tuple(cameras), tuple(inferences), cameras_given, tuple(heaps), imports)


def needs_of(sections: Sequence[Section], path: str, cameras: Sequence[str] = ()) -> Needs:
    """What the nodes would do with these sections.

    :param cameras: namespaces of the cameras, as ``perception --cameras`` takes them; empty: those that the file names, or else one.
    """

    def found(kind: str) -> list[NodeNeed]:
        nodes = [f'/{name}/{kind}' for name in cameras] or list(
            dict.fromkeys(nodes_named(kind, sections))
        )
        return [node_need(kind, values_of(node, sections), node) for node in nodes or [f'/{kind}']]

    return needs_for(path, found('capture'), found('inference'), cameras_given=bool(cameras))


def read_needs(path: str, cameras: Sequence[str] = ()) -> Needs:
    """What a parameter file asks.

    :param path: empty: there is none.
    :raises ConfigError: it can't be read, or ``perception`` would refuse the names of the cameras.
    """
    check_cameras(cameras, '--cameras')
    if not path:
        if cameras:
            raise ConfigError('--cameras needs --params-file, which says what these cameras are')
        return Needs()
    file = read_parameter_yaml(path)
    return replace(needs_of(file.sections, path, cameras), read_by_ros=file.by_rcl)
