from qkvary.planning.pictures import SIZES
from qkvary.reports.page import render_page
from qkvary.reports.published_quality import show_published
from tests.reports.synthetic import make_summary


def test_each_size_has_a_picture_and_each_caveat_is_said_once() -> None:
    section = show_published(SIZES, "some")
    assert [picture.caption for picture in section.pictures] == [
        "The papers’ 300M networks",
        "The papers’ 1.2B networks",
    ]
    said = [*section.caveats, *(one for picture in section.pictures for one in picture.caveats)]
    assert len(said) == len(set(said))
    assert section.caveats[-1].startswith("Dotted bars: an estimate")
    assert 'id="some-0-t"' in section.pictures[0].drawing
    assert 'id="some-1-t"' in section.pictures[1].drawing


def test_the_key_says_what_every_mark_is() -> None:
    titles = [title for title, _ in show_published(("300M",), "some").key]
    assert titles == [
        "on the frontier",
        "† dominated",
        "what the printed digits leave open",
        "estimate per real token",
    ]


def test_a_study_of_published_variants_that_decode_shows_it() -> None:
    page = render_page(make_summary(("QKV", "Q-K=V"), 2), ())
    assert page.count('<section id="language-models"') == 1
    assert "not of the networks of this study" in page


def test_a_study_of_other_variants_does_not() -> None:
    assert "language-models" not in render_page(make_summary(("QKV", "I-K=V"), 2), ())
