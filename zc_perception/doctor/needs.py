"""What the parameter file asks of the machine; without one, everything may be asked. Needs no ROS.

Read :class:`Needs` first: every check gets it, and asks it how bad it is that something is missing.

Source: the parameter files of ROS 2 (``rcl_yaml_param_parser``): namespaces may be nested, ``*`` is one token of a node's full name, ``**``
any number of them, nested parameters have dotted names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypeVar

from zc_perception.camera.kinds import draws
from zc_perception.doctor.finding import Need
from zc_perception.errors import ConfigError
from zc_perception.nodes.namespaces import check_cameras
from zc_perception.nodes.params.yaml_file import (
    Section,
    nodes_named,
    read_parameter_yaml,
    values_of,
)

T = TypeVar('T', 'CameraNeed', 'InferenceNeed')


@dataclass(frozen=True)
class CameraNeed:
    """A capture node's parameters, as far as they ask something of the machine. Names and defaults are the node's own.

    :param node: its full name.
    """

    node: str = '/capture'
    camera: str = 'synthetic'
    width: int = 0
    height: int = 0
    framerate: float = 0.0
    device: str = '/dev/video0'
    pixel_format: str = 'auto'
    memory: str = 'auto'
    heap: str = 'auto'
    slots: int = 8
    participants: tuple[str, ...] = ()
    camera_name: str = ''
    camera_info_url: str = ''
    rescale_camera_info: bool = False
    pipeline: str = ''
    pipeline_buffers: int = 8
    sensor_id: int = 0
    libcamera_id: str = ''
    video: str = ''
    replay_topic: str = ''
    shared_memory_group: str = ''
    realtime_priority: int = 0
    lock_memory: bool = False

    @property
    def label(self) -> str:
        """For people: the node and its kind of camera."""
        return f'{self.node} ({self.camera}{" " + self.device if self.camera == "v4l2" else ""})'


@dataclass(frozen=True)
class InferenceNeed:
    """An inference node's, likewise."""

    node: str = '/inference'
    accelerator: str = 'auto'
    model: str = 'road'
    accelerator_device: str = ''
    axl_ioctls: tuple[str, ...] = ()
    axruntime_library: str = ''
    aipu_cores: int = 1
    in_flight: int = 1
    double_buffer: bool = False
    realtime_priority: int = 0
    lock_memory: bool = False

    def as_json(self) -> dict[str, Any]:
        """For the question whether its model loads."""
        return asdict(self)


@dataclass(frozen=True)
class Needs:
    """Everything that is asked.

    :param path: the parameter file; empty: none was given.
    :param cameras: one for each capture node.
    :param inferences: one for each inference node.
    :param cameras_given: whether these are all cameras, by ``--cameras``, not those that the file names.
    """

    path: str = ''
    cameras: tuple[CameraNeed, ...] = ()
    inferences: tuple[InferenceNeed, ...] = ()
    cameras_given: bool = False

    @property
    def known(self) -> bool:
        """Whether there is a parameter file."""
        return bool(self.path)

    def camera(self, *kinds: str) -> Need:
        """Who needs one of these kinds of cameras."""
        return self._need(any(camera.camera in kinds for camera in self.cameras))

    def accelerator(self, name: str) -> Need:
        """Who needs that accelerator."""
        wanted = [inference.accelerator for inference in self.inferences]
        return (
            Need.POSSIBLE
            if 'auto' in wanted and name not in wanted
            else self._need(name in wanted)
        )

    def card(self) -> Need:
        """Who needs a Metis card, whatever talks to it."""
        both = (self.accelerator('axl'), self.accelerator('axruntime'))
        return next(need for need in Need if need in both)

    def own_heaps(self) -> tuple[str, ...]:
        """The heaps that cameras take their buffers from: names, or ``auto``."""
        return tuple(
            dict.fromkeys(camera.heap for camera in self.cameras if uses_own_heap(camera))
        )

    def heap(self, name: str) -> Need:
        """Who needs that heap."""
        heaps = self.own_heaps()
        return (
            Need.POSSIBLE
            if name not in heaps and self.known and ('auto' in heaps or self.device_imports())
            else self._need(name in heaps)
        )

    def namespaces(self) -> tuple[str, ...]:
        """Of all these nodes; empty: none."""
        nodes = [camera.node for camera in self.cameras] + [
            inference.node for inference in self.inferences
        ]
        return tuple(dict.fromkeys(node.rpartition('/')[0] for node in nodes))

    def device_imports(self) -> bool:
        """Whether a device has to import buffers, so that a memfd won't do."""
        return any(i.accelerator == 'axl' for i in self.inferences) or any(
            c.memory == 'import' and c.camera == 'v4l2' for c in self.cameras
        )

    def _need(self, asked: bool) -> Need:
        if not self.known:
            return Need.POSSIBLE
        return Need.REQUIRED if asked else Need.UNUSED

    def summary(self) -> str:
        """One line for people."""
        if not self.known:
            return 'no parameter file was given: every use is checked'
        parts = [camera.label for camera in self.cameras] + [
            f'{i.node} ({i.accelerator}, model {i.model})' for i in self.inferences
        ]
        return f'for {self.path}: {", ".join(parts)}'


def uses_own_heap(camera: CameraNeed) -> bool:
    """Whether the package allocates the buffers of that camera: others bring their own."""
    return draws(camera.camera) or (camera.camera == 'v4l2' and camera.memory == 'import')


def _taken(kind: type[T], node: str, values: Mapping[str, Any]) -> T:
    """The node's values where they have the right type, elsewhere its defaults: check ``parameters.file`` tells what the node refuses."""
    default = kind(node=node)
    taken: dict[str, Any] = {}
    for name in {one.name for one in fields(kind)} & values.keys() - {'node'}:
        value, wanted = values[name], type(getattr(default, name))
        if wanted is float and type(value) is int:
            value = float(value)
        elif wanted is tuple:
            value = (
                tuple(v for v in value if v != '')
                if isinstance(value, list)
                else ()
                if value is None
                else value
            )
        elif name == 'accelerator_device' and type(value) is int:
            value = str(value)
        if type(value) is wanted and (
            wanted is not tuple or all(type(one) is str for one in value)
        ):
            taken[name] = value
    return replace(default, **taken)


def needs_of(sections: Sequence[Section], path: str, cameras: Sequence[str] = ()) -> Needs:
    """What the nodes would do with these sections.

    :param cameras: namespaces of the cameras, as ``perception --cameras`` takes them; empty: those that the file names, or else one.
    """
    found = list(dict.fromkeys(nodes_named('capture', sections))) or ['/capture']
    inferring = list(dict.fromkeys(nodes_named('inference', sections))) or ['/inference']
    if cameras:
        found = [f'/{name}/capture' for name in cameras]
        inferring = [f'/{name}/inference' for name in cameras]
    return Needs(
        path,
        tuple(_taken(CameraNeed, node, values_of(node, sections)) for node in found),
        tuple(_taken(InferenceNeed, node, values_of(node, sections)) for node in inferring),
        bool(cameras),
    )


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
    return needs_of(read_parameter_yaml(path).sections, path, cameras)
