"""Caps of dma-buf video: the document's rules, its two examples, and intersection as negotiation."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zc_perception.errors import FormatError
from zc_perception.pixel.caps import DmaBufCaps, format_caps, intersect_caps, parse_caps
from zc_perception.pixel.caps_values import Choice, Other, Range, Value
from zc_perception.pixel.fourcc import NV12, fourcc_code
from zc_perception.pixel.modifier import INVALID, LINEAR

X_TILED, Y_TILED = 1 << 56 | 1, 1 << 56 | 2
NV12_X = (NV12, X_TILED)
NV12_LINEAR = (NV12, LINEAR)
AR24, YU12, YV12, R8 = (fourcc_code(name) for name in ('AR24', 'YU12', 'YV12', 'R8  '))
DMABUF = 'video/x-raw(memory:DMABuf), format=(string)DMA_DRM'
#: The document's first template, in the words of a caps string.
TEMPLATE = (
    DMABUF + ', drm-format={ (string)NV12:0x0100000000000001, (string)YU12, (string)YV12, (string)YUYV:0x0100000000000002, '
    '(string)P010:0x0100000000000002, (string)AR24:0x0100000000000002, (string)AB24:0x0100000000000002, '
    '(string)AR39:0x0100000000000002, (string)AYUV:0x0100000000000002 }, width=[ 16, 16384 ], height=[ 16, 16384 ]'
)
#: vapostproc's template in the document, whose GStreamer names (I420, BGRA) are corrected to DRM's.
VAPOSTPROC = (
    DMABUF + ', drm-format={ (string)NV12:0x0100000000000001, (string)NV12, (string)YU12, (string)YV12, '
    '(string)AR24:0x0100000000000002 }, width=[ 16, 16384 ], height=[ 16, 16384 ]'
)
GLUPLOAD = DMABUF + ', width=[ 1, 2147483647 ], height=[ 1, 2147483647 ]'

pairs = st.tuples(
    st.sampled_from([NV12, AR24, YU12, R8, fourcc_code('AR39')]), st.sampled_from([LINEAR, X_TILED, Y_TILED, 3 << 56 | 0x14, (1 << 64) - 1])
)
named_pairs = st.sampled_from([NV12_LINEAR, (AR24, LINEAR), (YU12, LINEAR), (NV12, 6 << 56 | 1), (R8, LINEAR)])
sizes: st.SearchStrategy[Value | None] = st.one_of(
    st.none(), st.integers(1, 5000), st.integers(1, 100).map(lambda n: Range(n, n + 100)), st.just(Choice((640, 1920)))
)
rates: st.SearchStrategy[Value | None] = st.one_of(
    st.none(),
    st.fractions(0, 120, max_denominator=1001),
    st.just(Range(Fraction(0), Fraction(60))),
    st.just(Choice((Fraction(25), Fraction(30)))),
)
extras = st.dictionaries(
    st.sampled_from(['interlace-mode', 'colorimetry', 'pixel-aspect-ratio', 'views']),
    st.sampled_from(['progressive', 'bt709', Fraction(1), 1, Choice(('a', 'b')), Other('flagset', '0:f:/x')]),
).map(lambda fields: tuple(fields.items()))


def caps_of(formats: st.SearchStrategy[tuple[int, int]], *, dmabuf: bool) -> st.SearchStrategy[DmaBufCaps]:
    lists = st.one_of(st.none(), st.lists(formats, min_size=1, max_size=4).map(tuple))
    metas = st.sampled_from([(), ('meta:GstVideoOverlayComposition',)])
    return st.builds(DmaBufCaps, lists, sizes, sizes, rates, extras, metas, st.just(dmabuf))


any_caps = st.one_of(caps_of(pairs, dmabuf=True), caps_of(named_pairs, dmabuf=False))


@given(any_caps)
def test_what_is_written_is_read_again(caps: DmaBufCaps) -> None:
    assert DmaBufCaps.parse(str(caps)) == caps
    assert str(DmaBufCaps.parse(str(caps))) == str(caps)


@given(st.lists(any_caps, min_size=1, max_size=3))
def test_several_structures_go_both_ways(several: list[DmaBufCaps]) -> None:
    assert list(parse_caps(format_caps(several))) == several


@given(
    st.one_of(
        st.text(max_size=40),
        st.text('vidoe/x-raw(memory:DMABuf), =[]{}"NV12;', max_size=30).map((DMABUF + ', ').__add__),
        st.tuples(st.integers(0, len(TEMPLATE)), st.text(max_size=3)).map(lambda cut: TEMPLATE[: cut[0]] + cut[1] + TEMPLATE[cut[0] :]),
        st.integers(0, len(TEMPLATE)).map(lambda end: TEMPLATE[:end]),
    )
)
def test_any_text_is_caps_or_refused(text: str) -> None:
    for parse in (parse_caps, DmaBufCaps.parse):
        try:
            found = parse(text)
        except FormatError:
            continue
        assert parse(format_caps(found) if isinstance(found, tuple) else str(found)) == found


# The rules of the caps.


def test_the_document_s_fixed_caps_are_read_with_every_field() -> None:
    # Its misprinted modifier corrected, and without the comma after the last field, which GStreamer refuses as well.
    caps = DmaBufCaps.parse(
        'video/x-raw(memory:DMABuf), format=(string)DMA_DRM, drm-format=(string)NV12:0x0100000000000001, width=(int)1920, '
        'height=(int)1080, interlace-mode=(string)progressive, multiview-mode=(string)mono, '
        'multiview-flags=(GstVideoMultiviewFlagsSet)0:ffffffff:/right-view-first/left-flipped/left-flopped/right-flipped/'
        'right-flopped/half-aspect/mixed-mono, pixel-aspect-ratio=(fraction)1/1, framerate=(fraction)24/1'
    )
    assert caps.is_fixed and caps.format == NV12_X
    assert (caps.width, caps.height, caps.framerate) == (1920, 1080, Fraction(24))
    others = dict(caps.others)
    assert others['interlace-mode'] == 'progressive' and others['pixel-aspect-ratio'] == Fraction(1)
    assert str(others['multiview-flags']).count('/') == 7
    assert DmaBufCaps.parse(str(caps)) == caps


@pytest.mark.parametrize(
    ('text', 'why'),
    [
        (DMABUF + ', drm-format=(string)NV12:0x0x0100000000000001', '16 hexadecimal digits'),
        (DMABUF + ', drm-format=(string)NV12:0x0000000000000000', 'LINEAR is not written out'),
        (DMABUF + ', drm-format={ NV12:0x0100000000000001, I420 }', "the DRM fourcc is 'YU12'"),
        (DMABUF + ', drm-format={ NV12:0x0100000000000001, BGRA }', "the DRM fourcc is 'AR24'"),
        (DMABUF + ', drm-format=5', 'must be a string or a list of strings'),
        (DMABUF + ', drm-format={ NV12, 5 }', 'must be a string'),
        (DMABUF + ', drm-format={ }', 'a value is expected'),
        # A traditional format inside the feature, and the other way round.
        ('video/x-raw(memory:DMABuf), format=(string)NV12', 'format must be .string.DMA_DRM, and is NV12; put it into drm-format'),
        ('video/x-raw(memory:DMABuf), format={ DMA_DRM, NV12 }', 'and is DMA_DRM, NV12'),
        ('video/x-raw(memory:DMABuf), drm-format=(string)NV12', 'and is missing'),
        ('video/x-raw(memory:DMABuf), width=5', 'and is missing'),
        ('video/x-raw, format=(string)DMA_DRM, drm-format=(string)NV12', 'drm-format may appear only inside'),
        ('video/x-raw, drm-format=(string)NV12', 'drm-format may appear only inside'),
        ('video/x-raw, format=(string)DMA_DRM', 'DMA_DRM may appear only inside'),
        ('video/x-raw(memory:SystemMemory), drm-format=NV12', 'drm-format may appear only inside'),
        ('video/x-raw, format=(string)A420', "'A420' has no DRM fourcc"),
        ('video/x-raw(memory:NVMM), format=NV12', 'are neither video/x-raw nor'),
        ('video/x-raw(ANY)', 'are no caps features'),
        ('video/x-h264, width=5', 'are neither'),
        ('ANY', 'are neither'),
        ('', 'have 0 structures'),
        (f'{DMABUF}; {DMABUF}', 'have 2 structures; give one'),
        (f'{DMABUF},', 'a field name is expected'),
        (f'{DMABUF}, width', "'=' is expected"),
        (f'{DMABUF} width=5', "',' or ';' is expected"),
        (f'{DMABUF}, width=5, width=5', "'width' is no field name, or comes twice"),
        (f'{DMABUF}, width=0', 'width=.int.0 must be a positive integer'),
        (f'{DMABUF}, width=wide', 'must be a positive integer, or a range or list'),
        (f'{DMABUF}, width=16/9', 'must be a positive integer'),
        (f'{DMABUF}, height=[ -1, 5 ]', 'must be a positive integer'),
        (f'{DMABUF}, framerate=30', 'must be a fraction'),
        (f'{DMABUF}, framerate=-30/1', 'must be a fraction that is not negative'),
        (f'{DMABUF}, width={{ 5, 6/1 }}', 'must be a positive integer'),
    ],
)
def test_what_is_refused_says_why(text: str, why: str) -> None:
    with pytest.raises(FormatError, match=why):
        DmaBufCaps.parse(text)


@pytest.mark.parametrize(
    ('fields', 'why'),
    [
        ({'formats': ()}, 'caps without any format'),
        ({'formats': ((NV12, INVALID),)}, 'ask the allocator first'),
        ({'formats': (NV12_X,), 'dmabuf': False}, "'NV12' with modifier 0x0100000000000001 may flow only inside memory:DMABuf"),
        ({'formats': None, 'others': (('width', 5),)}, "'width' is no field of its own"),
        ({'formats': None, 'others': (('drm-format', 'NV12'),)}, "'drm-format' is no field"),
        ({'formats': None, 'others': (('a b', 5),)}, "'a b' is no field"),
        ({'formats': None, 'others': (('a', 5), ('a', 6))}, "'a' is no field"),
        ({'formats': None, 'width': True}, 'must be a positive integer'),
    ],
)
def test_caps_that_cannot_be_made(fields: dict[str, object], why: str) -> None:
    with pytest.raises(FormatError, match=why):
        DmaBufCaps(**fields)  # type: ignore[arg-type]


def test_a_format_that_we_do_not_know_is_kept_in_a_foreign_list() -> None:
    caps = DmaBufCaps.parse(TEMPLATE)
    assert caps.formats is not None and (fourcc_code('AYUV'), Y_TILED) in caps.formats
    assert 'AR39:0x0100000000000002' in str(caps)


def test_an_absent_drm_format_is_any() -> None:
    assert DmaBufCaps.parse(GLUPLOAD).formats is None
    assert 'drm-format' not in str(DmaBufCaps.parse(GLUPLOAD))


def test_blanks_of_a_fourcc_are_escaped_as_gstreamer_does_it() -> None:
    caps = DmaBufCaps(((R8, X_TILED), NV12_LINEAR))
    assert str(caps) == DMABUF + r', drm-format=(string){ "R8\ \ :0x0100000000000001", NV12 }'
    assert DmaBufCaps.parse(DMABUF + ', drm-format="R8  "').formats == ((R8, LINEAR),)


def test_repeated_formats_count_once() -> None:
    assert DmaBufCaps((NV12_X, NV12_LINEAR, NV12_X)).formats == (NV12_X, NV12_LINEAR)


# Negotiation.


def test_the_document_s_pipeline_comes_out_as_it_says() -> None:
    vapostproc, glupload = DmaBufCaps.parse(VAPOSTPROC), DmaBufCaps.parse(GLUPLOAD)
    # The static templates first: absent is the super set, so all of vapostproc's remains.
    assert vapostproc.intersect(glupload) == vapostproc
    # At run time glupload answers the caps query with what EGL says.
    answer = glupload.narrow([NV12_X, (AR24, LINEAR)])
    assert answer is not None
    agreed = vapostproc.intersect(answer)
    assert agreed is not None and agreed.formats == (NV12_X,)
    fixed = agreed.fixate(width=1920, height=1080)
    assert str(fixed) == DMABUF + ', drm-format=(string)NV12:0x0100000000000001, width=(int)1920, height=(int)1080'
    assert fixed.is_fixed and fixed.format == NV12_X


def test_the_document_s_second_template_is_refused_as_it_is_printed() -> None:
    printed = VAPOSTPROC.replace('YU12', 'I420').replace('AR24', 'BGRA')
    with pytest.raises(FormatError, match="'I420' is GStreamer's name; the DRM fourcc is 'YU12'"):
        DmaBufCaps.parse(printed)


def test_a_later_and_narrower_list_is_one_more_intersection() -> None:
    template = DmaBufCaps.parse(TEMPLATE)
    first = template.narrow([NV12_X, (YU12, LINEAR), (YV12, LINEAR)])
    assert first is not None
    # The window has been realized: reconfigure.
    second = first.narrow([(YV12, LINEAR), (AR24, LINEAR)])
    assert second is not None and second.formats == ((YV12, LINEAR),)
    assert second == template.narrow([(YV12, LINEAR), (AR24, LINEAR)])
    assert second.narrow([NV12_X]) is None


def test_tiled_and_linear_of_one_fourcc_are_different_formats() -> None:
    assert DmaBufCaps((NV12_X,)).intersect(DmaBufCaps((NV12_LINEAR,))) is None


def test_sizes_and_rates_intersect_too() -> None:
    ours = DmaBufCaps((NV12_LINEAR,), Range(16, 1920), Choice((480, 1080)), Range(Fraction(1), Fraction(60)), (('views', Range(1, 2)),))
    theirs = DmaBufCaps(None, Range(640, 4096), Range(500, 2000), Fraction(30), (('views', 1), ('colorimetry', 'bt709')))
    assert ours.intersect(theirs) == DmaBufCaps(
        (NV12_LINEAR,), Range(640, 1920), 1080, Fraction(30), (('colorimetry', 'bt709'), ('views', 1))
    )
    assert ours.intersect(replace(theirs, width=2000)) is None
    assert ours.intersect(replace(theirs, others=(('views', 3),))) is None


def test_memory_and_meta_must_be_the_same() -> None:
    inside = DmaBufCaps((NV12_LINEAR,))
    assert inside.intersect(replace(inside, dmabuf=False)) is None
    assert inside.intersect(replace(inside, meta=('meta:GstVideoOverlayComposition',))) is None


@given(any_caps, any_caps)
def test_an_intersection_is_in_both_and_commutes_but_for_the_order(first: DmaBufCaps, second: DmaBufCaps) -> None:
    both, other = first.intersect(second), second.intersect(first)
    assert (both is None) == (other is None)
    if both is None or other is None:
        return
    assert (both.formats is None) == (first.formats is None and second.formats is None)
    assert set(both.formats or ()) == set(other.formats or ())
    for side in (first, second):
        # Nothing that isn't in one side is in the intersection: with that side again nothing is lost.
        assert both.intersect(side) == both
    assert both.width == other.width or isinstance(both.width, Choice)


@given(any_caps)
def test_caps_intersected_with_themselves_stay(caps: DmaBufCaps) -> None:
    assert caps.intersect(caps) == caps


@given(any_caps, st.integers(1, 4000), st.integers(1, 4000), st.fractions(0, 100))
def test_fixation_stays_within_the_caps(caps: DmaBufCaps, width: int, height: int, rate: Fraction) -> None:
    if caps.formats is None:
        with pytest.raises(FormatError, match='allow any format'):
            caps.fixate(width=width, height=height)
        return
    fixed = caps.fixate(width=width, height=height, framerate=rate)
    assert fixed.is_fixed
    assert fixed.format == caps.formats[0]
    assert caps.intersect(fixed) == fixed


def test_fixation_without_a_size_says_what_is_missing() -> None:
    with pytest.raises(FormatError, match='allow any height: give one'):
        DmaBufCaps((NV12_X,), 640).fixate()
    assert DmaBufCaps((NV12_X,), Range(16, 64), Choice((48, 32))).fixate() == DmaBufCaps((NV12_X,), 16, 48)


@pytest.mark.parametrize(
    'caps', [DmaBufCaps(None, 64, 48), DmaBufCaps((NV12_X, NV12_LINEAR), 64, 48), DmaBufCaps((NV12_X,), 64), DmaBufCaps((NV12_X,), 64, 48,
             Range(Fraction(1), Fraction(2))), DmaBufCaps((NV12_X,), 64, 48, None, (('a', Choice(('b', 'c'))),))]
)  # fmt: skip
def test_templates_are_not_fixed(caps: DmaBufCaps) -> None:
    assert not caps.is_fixed
    if caps.formats is None or len(caps.formats) > 1:
        with pytest.raises(FormatError, match='fixate them first'):
            _ = caps.format


def test_a_buffer_of_any_pool_conforms_when_its_metadata_do() -> None:
    agreed = DmaBufCaps((NV12_X,), 1920, 1080, Fraction(30), (('colorimetry', 'bt709'),), ('meta:GstVideoOverlayComposition',))
    agreed.check_image(*NV12_X, 1920, 1080)
    for other in ((NV12, LINEAR, 1920, 1080), (AR24, X_TILED, 1920, 1080), (*NV12_X, 1920, 1088), (*NV12_X, 1088, 1080)):
        with pytest.raises(FormatError, match=r'the image is video/x-raw.*, and the caps are video/x-raw.memory:DMABuf'):
            agreed.check_image(*other)


# LINEAR dma-bufs without the feature.


def test_linear_may_flow_as_plain_video() -> None:
    caps = DmaBufCaps((NV12_X, NV12_LINEAR, (AR24, LINEAR)), 1920, 1080, Fraction(30))
    plain = caps.plain()
    assert plain is not None
    assert str(plain) == 'video/x-raw, format=(string){ NV12, BGRA }, width=(int)1920, height=(int)1080, framerate=(fraction)30/1'
    assert DmaBufCaps.parse(str(plain)) == plain
    assert plain.with_feature().formats == (NV12_LINEAR, (AR24, LINEAR))


def test_a_well_known_tiling_keeps_its_gstreamer_format() -> None:
    plain = DmaBufCaps(((NV12, 6 << 56 | 1),)).plain()
    assert plain is not None and str(plain) == 'video/x-raw, format=(string)NV12_4L4'


def test_what_gstreamer_has_no_name_for_stays_inside_the_feature() -> None:
    assert DmaBufCaps((NV12_X, (fourcc_code('NV42'), LINEAR), (fourcc_code('AYUV'), LINEAR))).plain() is None
    anything = DmaBufCaps(None, 64, 48).plain()
    assert anything is not None and str(anything) == 'video/x-raw, width=(int)64, height=(int)48'


def test_foreign_formats_in_a_plain_list_are_left_out() -> None:
    assert DmaBufCaps.parse('video/x-raw, format={ A420, NV12, GBR }').formats == (NV12_LINEAR,)


def test_structures_of_other_memory_are_left_out_of_a_list() -> None:
    text = f'video/x-raw(memory:VAMemory), format=NV12; {VAPOSTPROC}; image/jpeg; video/x-raw, format={{ NV12, I420 }}'
    inside, plain = parse_caps(text)
    assert inside.dmabuf and not plain.dmabuf
    with pytest.raises(FormatError, match='have neither'):
        parse_caps('video/x-raw(memory:VAMemory), format=NV12')


def test_two_lists_of_structures_intersect_in_the_first_s_order() -> None:
    inside, plain = DmaBufCaps((NV12_X, NV12_LINEAR)), DmaBufCaps((NV12_LINEAR,), dmabuf=False)
    assert intersect_caps([inside, plain], [plain]) == (plain,)
    assert intersect_caps([inside, plain], [plain, DmaBufCaps((NV12_LINEAR,))]) == (DmaBufCaps((NV12_LINEAR,)), plain)
    assert intersect_caps([inside], [plain]) == ()
