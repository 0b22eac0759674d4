"""What a parameter file asks for, and that names and defaults are the nodes' own."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zc_perception.errors import ConfigError
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.inference import InferenceNode
from zc_perception.verify.doctor.finding import Need
from zc_perception.verify.doctor.needs import CameraNeed, InferenceNeed, Needs, needs_of, read_needs
from zc_perception.verify.doctor.parameter_file import matches, node_sections, parameters_of, read_parameter_file

CONFIG = Path(__file__).parents[3] / 'config' / 'perception.yaml'
#: Parameters that come with real-time support; a node may not have them yet.
NEWER = {'realtime_priority', 'lock_memory'}


@pytest.mark.parametrize(('kind', 'node'), [(CameraNeed, CaptureNode), (InferenceNeed, InferenceNode)])
def test_names_and_defaults_are_the_nodes_own(kind: type[CameraNeed], node: type[CaptureNode]) -> None:
    specs = {spec.name: spec.default for spec in node.SPECS}
    own = {field.name: getattr(kind(), field.name) for field in fields(kind) if field.name != 'node'}
    assert own.keys() - specs.keys() <= NEWER
    for name in own.keys() & specs.keys():
        default = tuple(specs[name]) if isinstance(specs[name], list) else specs[name]
        assert (own[name], type(own[name])) == (default, type(default)), name


def test_the_shipped_file_asks_for_nothing_special() -> None:
    needs = read_needs(str(CONFIG))
    assert needs.cameras == (CameraNeed(),) and needs.inferences == (InferenceNeed(),) and not needs.refused
    assert (
        needs.accelerator('axl') is Need.POSSIBLE and needs.camera('v4l2') is Need.UNUSED and needs.heap('dma_heap/system') is Need.POSSIBLE
    )


def sections(text: str, tmp_path: Path) -> Needs:
    path = tmp_path / 'vehicle.yaml'
    path.write_text(text, encoding='utf-8')
    return read_needs(str(path))


def test_sections_that_name_a_node_are_one_camera_each(tmp_path: Path) -> None:
    needs = sections(
        """
/**/capture: {ros__parameters: {camera: v4l2, slots: 5}}
left:
  capture: {ros__parameters: {device: /dev/video2}}
/right/capture: {ros__parameters: {device: /dev/video4, slots: 7}}
/**/inference: {ros__parameters: {accelerator: axl, in_flight: 2}}
/other_package: {ros__parameters: {width: 1}}
""",
        tmp_path,
    )
    assert [(c.node, c.camera, c.device, c.slots) for c in needs.cameras] == [
        ('/left/capture', 'v4l2', '/dev/video2', 5), ('/right/capture', 'v4l2', '/dev/video4', 7),
    ]  # fmt: skip
    assert [(i.node, i.accelerator, i.in_flight) for i in needs.inferences] == [('/inference', 'axl', 2)]


def test_namespaces_can_be_given_as_for_perception(tmp_path: Path) -> None:
    (tmp_path / 'v.yaml').write_text('/**/capture: {ros__parameters: {camera: v4l2}}\n/front/capture: {ros__parameters: {slots: 3}}\n')
    needs = read_needs(str(tmp_path / 'v.yaml'), ['front', 'rear'])
    assert [(c.node, c.camera, c.slots) for c in needs.cameras] == [('/front/capture', 'v4l2', 3), ('/rear/capture', 'v4l2', 8)]
    with pytest.raises(ConfigError, match='--params-file'):
        read_needs('', ['front'])


def test_values_of_another_type_are_told_and_left_out(tmp_path: Path) -> None:
    needs = sections('/**/capture: {ros__parameters: {width: wide, framerate: 30, slots: true, device: 3}}', tmp_path)
    assert needs.cameras == (CameraNeed(framerate=30.0),)
    assert [text.split("'")[3] for text in needs.refused] == ['width', 'device', 'slots']


def test_without_a_file_everything_is_possible() -> None:
    needs = Needs()
    assert {needs.camera('v4l2'), needs.accelerator('axl'), needs.card(), needs.heap('udmabuf')} == {Need.POSSIBLE}
    assert not needs.device_imports()


@pytest.mark.parametrize(
    ('accelerators', 'axl', 'axruntime', 'card'),
    [
        (('axl',), Need.REQUIRED, Need.UNUSED, Need.REQUIRED),
        (('axruntime',), Need.UNUSED, Need.REQUIRED, Need.REQUIRED),
        (('cpu',), Need.UNUSED, Need.UNUSED, Need.UNUSED),
        (('auto',), Need.POSSIBLE, Need.POSSIBLE, Need.POSSIBLE),
        (('auto', 'axl'), Need.REQUIRED, Need.POSSIBLE, Need.REQUIRED),
        (('cpu', 'axl'), Need.REQUIRED, Need.UNUSED, Need.REQUIRED),
    ],
)
def test_who_needs_which_accelerator(accelerators: tuple[str, ...], axl: Need, axruntime: Need, card: Need) -> None:
    needs = Needs('file', (CameraNeed(),), tuple(InferenceNeed(accelerator=name) for name in accelerators))
    assert (needs.accelerator('axl'), needs.accelerator('axruntime'), needs.card()) == (axl, axruntime, card)


@pytest.mark.parametrize('text', ['', '- 1', 'capture: [', '3', 'a: !!python/object:os.system {}'])
def test_a_file_that_is_none_is_one_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / 'x.yaml').write_text(text, encoding='utf-8')
    with pytest.raises(ConfigError, match=r'x\.yaml'):
        read_needs(str(tmp_path / 'x.yaml'))
    with pytest.raises(ConfigError, match='No such file'):
        read_parameter_file(str(tmp_path / 'missing.yaml'))


@pytest.mark.parametrize(
    ('section', 'node', 'expected'),
    [
        ('/**/capture', '/capture', True), ('/**/capture', '/a/b/capture', True), ('/**', '/capture', True),
        ('/*/capture', '/capture', False), ('/*/capture', '/a/capture', True), ('/*/capture', '/a/b/capture', False),
        ('/capture', '/a/capture', False), ('/cap*', '/capture', True), ('/cap.ure', '/capture', False),
        ('/**/capture', '/a/capture2', False),
    ],
)  # fmt: skip
def test_which_section_meets_which_node(section: str, node: str, expected: bool) -> None:
    assert matches(section, node) is expected


def test_nested_parameters_have_dotted_names_and_the_exact_section_wins() -> None:
    found = node_sections({
        '/a/capture': {'ros__parameters': {'slots': 4}},
        '/**': {'ros__parameters': {'slots': 9, 'qos_overrides': {'/image': {'depth': 1}}}},
    })  # fmt: skip
    assert parameters_of('/a/capture', found) == {'slots': 4, 'qos_overrides./image.depth': 1}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner, max_size=3), max_leaves=5
)
KEYS = st.sampled_from([field.name for field in fields(CameraNeed)] + [field.name for field in fields(InferenceNeed)] + ['other'])


@given(st.dictionaries(KEYS, VALUES, max_size=6), st.sampled_from(['/**', '/**/capture', '/x/inference', 'capture']))
def test_no_value_ends_the_doctor(values: dict[str, object], section: str) -> None:
    needs = needs_of(node_sections({section: {'ros__parameters': values}}), 'file')
    assert needs.summary()
    for need in (*needs.cameras, *needs.inferences):
        assert all(type(getattr(need, f.name)) is type(getattr(type(need)(), f.name)) for f in fields(need))
