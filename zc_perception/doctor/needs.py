"""Reads what the parameter file asks of the machine (:mod:`~zc_perception.machine.needs`). Needs no ROS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from zc_perception.camera.camera import Camera
from zc_perception.camera.kinds import CAMERAS
from zc_perception.errors import ConfigError
from zc_perception.machine.needs import Needs, NodeNeed
from zc_perception.memory.heaps import HeapUse
from zc_perception.nodes.declarations import NODES
from zc_perception.nodes.namespaces import check_cameras
from zc_perception.nodes.params.yaml_file import (
    Section,
    nodes_named,
    read_parameter_yaml,
    values_of,
)
from zc_perception.npu.kinds import ACCELERATORS


def camera_class(camera: NodeNeed) -> type[Camera]:
    """The class of a node's kind of camera; of one that can't be imported, what is known of all cameras."""
    try:
        return CAMERAS.load(camera.kind)
    except ConfigError:  # check cameras.configured tells
        return Camera


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
                if spec is specs.own[0] and isinstance(values[spec.name], str):
                    taken[spec.name] = values[spec.name]  # no such kind: who looks at it says so
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
    uses = [(camera['heap'], camera_class(camera).heap_use(camera.values)) for camera in cameras]
    heaps = dict.fromkeys(heap for heap, use in uses if use is not None)
    importing = {name for name, kind in ACCELERATORS.declared.classes.items() if kind.IMPORTS}
    imports = any(i.kind in importing for i in inferences) or any(
        use is HeapUse.CAMERA_IMPORT for _, use in uses
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
