"""The peers by their names in the results. Imports none of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Variant:
    """One.

    :param distribution: its name in the package index.
    :param module: of this folder.
    :param options: for both classes.
    :param one_cpu: nothing of it runs at the same time, so that unthrottled series run on one CPU, as the links' do; that is where it is
        quickest.
    """

    distribution: str
    module: str
    producer: str
    consumer: str
    options: Mapping[str, Any] = field(default_factory=dict)
    one_cpu: bool = False


VARIANTS: dict[str, Variant] = {
    'zenoh': Variant('eclipse-zenoh', 'zenoh', 'ZenohOut', 'ZenohIn', {'shared_memory': False}),
    'zenoh_shared_memory': Variant('eclipse-zenoh', 'zenoh', 'ZenohOut', 'ZenohIn', {'shared_memory': True}),
    'iceoryx2_copy': Variant('iceoryx2', 'iceoryx2', 'Iceoryx2Out', 'Iceoryx2In', {'in_place': False}, one_cpu=True),
    'iceoryx2_in_place': Variant('iceoryx2', 'iceoryx2', 'Iceoryx2Out', 'Iceoryx2In', {'in_place': True}, one_cpu=True),
    'cyclonedds': Variant('cyclonedds', 'cyclonedds', 'CycloneDdsOut', 'CycloneDdsIn'),
}
PEERS = tuple(VARIANTS)
