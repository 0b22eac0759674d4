"""The four cases in which INVALID may appear, and that one buffer's chain is all explicit or all implicit."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from negotiation.kit import NV12, TILED, X_TILED, XR24, Y_TILED

from zc_perception.errors import FormatError, NegotiationError
from zc_perception.negotiation.modifier_chain import Allocated, Enumerated, ModifierChain, Requested, intersect, token
from zc_perception.pixel.modifier import INVALID, LINEAR, modifier_name


def test_none_is_the_out_of_band_form_of_invalid_and_zero_is_linear() -> None:
    assert token(None) == INVALID != 0 and token(0) == LINEAR != INVALID
    with pytest.raises(FormatError):
        token(1 << 64)


# Case 1: enumeration.


@pytest.mark.parametrize(
    ('modifiers', 'explicit', 'implicit'),
    [
        ((INVALID,), (), True),
        ((LINEAR, INVALID), (LINEAR,), True),
        ((LINEAR, X_TILED), (LINEAR, X_TILED), False),
        ((0,), (LINEAR,), False),
        ((), (), False),
    ],
)
def test_enumeration_says_what_is_known_and_whether_implicit_works(
    modifiers: tuple[int, ...], explicit: tuple[int, ...], implicit: bool
) -> None:
    listed = Enumerated('kms', XR24, modifiers)
    assert (listed.explicit, listed.implicit) == (explicit, implicit)


@pytest.mark.parametrize(
    ('lists', 'common'),
    [
        ([(Y_TILED, X_TILED, LINEAR), (LINEAR, X_TILED)], (X_TILED, LINEAR)),
        ([(Y_TILED, X_TILED, LINEAR), (LINEAR, X_TILED), (LINEAR, TILED)], (LINEAR,)),
        ([(LINEAR, INVALID), (INVALID, LINEAR)], (LINEAR, INVALID)),
        ([(LINEAR, INVALID), (LINEAR,)], (LINEAR,)),
        ([(X_TILED, INVALID), (Y_TILED, INVALID), (INVALID,)], (INVALID,)),
    ],
)
def test_lists_are_intersected_over_all_usages(lists: list[tuple[int, ...]], common: tuple[int, ...]) -> None:
    assert intersect([Enumerated(f'user {i}', XR24, modifiers) for i, modifiers in enumerate(lists)]) == common


MODIFIERS = st.lists(st.sampled_from([LINEAR, INVALID, X_TILED, Y_TILED, TILED]), unique=True, max_size=5).map(tuple)


@given(st.lists(MODIFIERS, min_size=1, max_size=4))
def test_the_intersection_doesn_t_depend_on_the_order_of_lists(lists: list[tuple[int, ...]]) -> None:
    expected = set.intersection(*map(set, lists))
    for order in itertools.permutations(lists):
        entries = [Enumerated(str(i), NV12, modifiers) for i, modifiers in enumerate(order)]
        if expected:
            assert set(intersect(entries)) == expected
        else:
            with pytest.raises(NegotiationError, match='no common modifier of NV12'):
                intersect(entries)


def test_an_empty_intersection_names_all_lists_and_the_other_strategy() -> None:
    with pytest.raises(NegotiationError, match=r'no common modifier of XR24 \(vulkan: .*; media: INVALID\).*separate buffer and copy'):
        intersect([Enumerated('vulkan', XR24, (LINEAR, X_TILED)), Enumerated('media', XR24, (INVALID,))])
    with pytest.raises(NegotiationError, match='b lists modifiers of NV12, a of XR24; choose one format first'):
        intersect([Enumerated('a', XR24, (LINEAR,)), Enumerated('b', NV12, (LINEAR,))])
    with pytest.raises(NegotiationError, match='no list'):
        intersect([])


# Case 2: the allocation request.


def test_no_list_is_the_same_as_invalid_alone() -> None:
    assert Requested(NV12, None) == Requested(NV12, (INVALID,))
    assert not Requested(NV12, None).explicit_allowed and Requested(NV12, None).implicit_allowed
    mixed = Requested(NV12, (LINEAR, INVALID))
    assert mixed.explicit_allowed and mixed.implicit_allowed
    explicit = Requested(NV12, (LINEAR, TILED))
    assert explicit.explicit_allowed and not explicit.implicit_allowed


def test_an_empty_list_is_not_no_list() -> None:
    with pytest.raises(NegotiationError, match='empty list of modifiers; name LINEAR, or INVALID'):
        Requested(NV12, ())


def test_linear_is_advised_where_modifiers_are_not_available() -> None:
    assert Requested(NV12, None).strongly_advised() == LINEAR == Requested(NV12, (TILED, INVALID)).strongly_advised()
    assert Requested(NV12, (TILED,)).strongly_advised() is None


# Case 3: the query after the allocation.


@pytest.mark.parametrize(
    ('requested', 'answer', 'modifier'),
    [
        ((LINEAR, TILED), TILED, TILED),
        ((LINEAR,), 0, LINEAR),
        ((LINEAR, INVALID), INVALID, INVALID),
        ((LINEAR, INVALID), None, INVALID),
        ((INVALID,), INVALID, INVALID),
        (None, None, INVALID),
        # Nobody asked for a modifier, so telling one doesn't make the buffer explicit by itself.
        (None, TILED, INVALID),
        ((INVALID,), LINEAR, INVALID),
    ],
)
def test_the_query_gives_the_chain_s_modifier(requested: tuple[int, ...] | None, answer: int | None, modifier: int) -> None:
    allocated = Requested(NV12, requested).answered(answer)
    assert allocated == Allocated(NV12, modifier) and allocated.explicit == (modifier != INVALID)


@pytest.mark.parametrize('answer', [INVALID, None])
def test_invalid_may_only_be_answered_when_it_was_acceptable(answer: int | None) -> None:
    with pytest.raises(NegotiationError, match='answered INVALID for NV12, which only a request that has INVALID in its list allows'):
        Requested(NV12, (LINEAR, TILED)).answered(answer)


def test_a_modifier_outside_the_list_is_refused() -> None:
    with pytest.raises(NegotiationError, match=r'chose modifier INTEL:.*acceptable are LINEAR, INVALID'):
        Requested(NV12, (LINEAR, INVALID)).answered(X_TILED)


# Case 4: imports, over the whole chain.


def chain(modifier: int) -> ModifierChain:
    return ModifierChain('producer', Allocated(NV12, modifier))


@pytest.mark.parametrize('modifier', [LINEAR, TILED])
def test_an_explicit_buffer_is_imported_with_its_modifier_by_all(modifier: int) -> None:
    explicit = chain(modifier)
    explicit.add_import('gpu', modifier)
    for without in (None, INVALID):
        with pytest.raises(NegotiationError, match=f'media imports NV12 without a modifier.*allocated with {modifier_name(modifier)}'):
            explicit.add_import('media', without)
    with pytest.raises(NegotiationError, match=r'media imports NV12 as INTEL:.*but the buffer is'):
        explicit.add_import('media', X_TILED)
    assert explicit.members == ('producer', 'gpu')


@pytest.mark.parametrize('without', [None, INVALID])
def test_an_implicit_buffer_is_imported_without_a_modifier_by_all(without: int | None) -> None:
    implicit = chain(INVALID)
    implicit.add_import('media', without)
    for modifier in (LINEAR, TILED):
        with pytest.raises(NegotiationError, match=r'gpu imports NV12 as .*nobody said what the layout.*upgrade it first'):
            implicit.add_import('gpu', modifier)
    assert implicit.members == ('producer', 'media')


def test_the_exception_an_implicit_allocation_is_upgraded_by_asking() -> None:
    gbm = ModifierChain('gbm', Requested(XR24, None).answered(None))
    gbm.upgrade(X_TILED)
    assert gbm.allocated == Allocated(XR24, X_TILED)
    gbm.add_import('kms', X_TILED)
    with pytest.raises(NegotiationError, match='without a modifier'):
        gbm.add_import('media', None)


def test_an_allocator_that_does_not_tell_leaves_the_chain_implicit() -> None:
    gbm = chain(INVALID)
    for answer in (None, INVALID):
        gbm.upgrade(answer)
    assert not gbm.allocated.explicit
    gbm.add_import('media', None)


def test_no_upgrade_after_an_implicit_import() -> None:
    gbm = chain(INVALID)
    gbm.add_import('media', None)
    with pytest.raises(NegotiationError, match='media imported the buffer without a modifier, so the chain stays implicit'):
        gbm.upgrade(LINEAR)
    assert gbm.allocated.modifier == INVALID
    gbm.upgrade(INVALID)


def test_an_explicit_buffer_has_nothing_to_upgrade() -> None:
    explicit = chain(TILED)
    explicit.upgrade(TILED)
    for other in (LINEAR, INVALID):
        with pytest.raises(NegotiationError, match='was allocated with modifier'):
            explicit.upgrade(other)


@given(
    st.sampled_from([None, (LINEAR,), (LINEAR, TILED), (TILED, INVALID), (INVALID,)]),
    st.sampled_from([LINEAR, TILED, INVALID]),
    st.lists(st.sampled_from([LINEAR, TILED, INVALID, None]), max_size=4),
)
def test_no_sequence_of_operations_mixes(requested: tuple[int, ...] | None, answer: int, imports: list[int | None]) -> None:
    try:
        whole = ModifierChain('producer', Requested(NV12, requested).answered(answer))
    except NegotiationError:
        assert requested is not None and answer not in requested
        return
    used = []
    for number, modifier in enumerate(imports):
        try:
            whole.add_import(f'user {number}', modifier)
            used.append(token(modifier))
        except NegotiationError:
            continue
    assert set(used) <= {whole.allocated.modifier}
    assert whole.allocated.modifier in (requested or (INVALID,))
