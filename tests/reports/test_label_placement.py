import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkvary.reports.label_placement import Box, Label, Spot, place, stack, text_width
from tests.conftest import examples

AREA = (0.0, 0.0, 340.0, 260.0)


def box_of(label: Label) -> Box:
    return label.x, label.y - 10, label.x + text_width(label.text), label.y + 2


def overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


@pytest.mark.parametrize("seed", range(8))
def test_names_cover_neither_names_nor_points(seed: int) -> None:
    draw = random.Random(seed)
    spots = [
        Spot(
            text=f"Q-GQA-{index}",
            x=draw.choice([60, 62, 200]) + draw.random(),
            y=draw.uniform(20, 200),
        )
        for index in range(12)
    ]
    marks = [(spot.x - 6, spot.y - 6, spot.x + 6, spot.y + 6) for spot in spots]
    labels = [label for label in place(spots, marks, AREA) if label]
    assert len(labels) == 12
    boxes = [box_of(label) for label in labels]
    assert not any(overlap(one, other) for one, other in itertools.combinations(boxes, 2))
    assert not any(overlap(box, mark) for box in boxes for mark in marks)
    for box in boxes:
        assert AREA[0] <= box[0]
        assert box[2] <= AREA[2] + 1
        assert AREA[1] <= box[1] + 1
        assert box[3] <= AREA[3] + 1


def test_crowded_point_gets_a_leader() -> None:
    spots = [Spot(text="Q=K-V", x=100, y=100 + step) for step in range(6)]
    labels = place(spots, [(94, 94, 106, 112)], AREA)
    assert any(label and label.leader for label in labels)


@examples(50)
@given(draw=st.randoms(use_true_random=False))
def test_a_column_of_boxes_never_overlaps_and_stays_in_its_room(draw: random.Random) -> None:
    boxes = [(draw.uniform(-20, 220), draw.choice([13.0, 26.0])) for _ in range(draw.randint(1, 7))]
    middles = stack(boxes, 0, 200)
    edges = sorted(
        (middle - height / 2, middle + height / 2)
        for middle, (_, height) in zip(middles, boxes, strict=True)
    )
    assert all(below[0] >= above[1] - 1e-9 for above, below in itertools.pairwise(edges))
    assert edges[0][0] >= -1e-9
    assert edges[-1][1] <= 200 + 1e-9
