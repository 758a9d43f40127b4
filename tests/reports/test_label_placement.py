import itertools
import random

import pytest

from qkvary.reports import label_placement
from qkvary.reports.label_placement import (
    Box,
    Label,
    Spot,
    boxes_along,
    place,
    stack,
    text_width,
)

AREA = (0.0, 0.0, 340.0, 260.0)


def box_of(label: Label) -> Box:
    return label.x, label.y - 10, label.x + text_width(label.text), label.y + 2


def overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


@pytest.mark.parametrize("seed", range(20))
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


def test_lonely_point_has_its_name_beside_it() -> None:
    (label,) = place([Spot(text="QKV", x=100, y=100)], [(94, 94, 106, 106)], AREA)
    assert label is not None
    assert label.leader is None
    assert label.x == 109


def test_crowded_point_gets_a_leader() -> None:
    spots = [Spot(text="Q=K-V", x=100, y=100 + step) for step in range(6)]
    labels = place(spots, [(94, 94, 106, 112)], AREA)
    assert any(label and label.leader for label in labels)


def test_no_room_means_no_name() -> None:
    assert place([Spot(text="QKV", x=5, y=5)], [], (0, 0, 10, 10)) == [None]


def test_places_do_not_depend_on_anything_else() -> None:
    spots = [Spot(text="QKV", x=50, y=50), Spot(text="MQA", x=51, y=52)]
    assert place(spots, [], AREA) == place(spots, [], AREA)


def test_lines_become_boxes() -> None:
    assert boxes_along([(0, 0), (10, 0), (10, 5)]) == [(-1, -1, 11, 1), (9, -1, 11, 6)]
    assert label_placement.boxes_along([]) == []


@pytest.mark.parametrize("seed", range(50))
def test_a_column_of_boxes_never_overlaps_and_stays_in_its_room(seed: int) -> None:
    draw = random.Random(seed)
    boxes = [(draw.uniform(-20, 220), draw.choice([13.0, 26.0])) for _ in range(draw.randint(1, 7))]
    middles = stack(boxes, 0, 200)
    edges = sorted(
        (middle - height / 2, middle + height / 2)
        for middle, (_, height) in zip(middles, boxes, strict=True)
    )
    assert all(below[0] >= above[1] - 1e-9 for above, below in itertools.pairwise(edges))
    assert edges[0][0] >= -1e-9
    assert edges[-1][1] <= 200 + 1e-9


def test_boxes_that_do_not_touch_stay_where_they_want_to_be() -> None:
    assert stack([(150, 13), (20, 13), (80, 26)], 0, 200) == [150, 20, 80]
    assert stack([], 0, 200) == []


def test_boxes_that_touch_share_the_way() -> None:
    assert stack([(100, 14), (100, 14)], 0, 200) == [93, 107]
    assert stack([(100, 14), (100, 14)], 0, 10) == [7, 21]
