"""What a node says of itself, in the form that it must have: any user can leave a frame log with anything in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_SHOWN = 60


def _is_text(value: object) -> bool:
    """That can be a path, and be written."""
    return isinstance(value, str) and '\0' not in value and not any('\ud800' <= c <= '\udfff' for c in value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_pool(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, list) and len(one) == 2 and all(map(_is_count, one)) for one in value)


def _is_ledger(value: object) -> bool:
    return isinstance(value, dict) and all(
        _is_text(reason) and isinstance(entry, dict) and _is_count(entry.get('count')) for reason, entry in value.items()
    )


_Form = tuple[Callable[[object], bool], str]
_TEXT: _Form = (_is_text, 'a text')
_COUNT: _Form = (_is_count, 'a number of 0..18446744073709551615')
#: All that is read of them here; what else a node tells is no matter.
_FORMS: dict[str, _Form] = {
    **dict.fromkeys(('accelerator', 'pci_address', 'rung', 'camera', 'device', 'heap', 'fourcc'), _TEXT),
    **dict.fromkeys(('width', 'height', 'slots', 'failed', 'dropped', 'trial_imports'), _COUNT),
    'import_cache': (_is_flag, 'true or false'),
    'pool': (_is_pool, 'a list of [st_dev, inode]'),
    'copies': (_is_ledger, '{reason: {"count": number}}'),
}


def check_facts(facts: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Those in their form, and a sentence for each that isn't."""
    good = dict(facts)
    wrong = []
    for name, (fits, form) in _FORMS.items():
        if name in good and not fits(good[name]):
            text = repr(good.pop(name))
            shown = text if len(text) <= _SHOWN else f'{text[:_SHOWN]}…'
            wrong.append(f'its {name} is {shown}; it must be {form}')
    return good, wrong
