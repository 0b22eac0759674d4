"""Who has a device open."""

from __future__ import annotations

from zc_perception.machine.host_tree import programs_using


def test_who_has_a_node_open_is_named() -> None:
    with open('/dev/full', 'rb'):
        assert 'this process' in programs_using('/dev/full')
    assert programs_using('/dev/no_such_node') == []
