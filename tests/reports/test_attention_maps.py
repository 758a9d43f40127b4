import io

import numpy as np
import pytest
from PIL import Image

from qkvary.reports import attention_maps as maps
from qkvary.reports.attention_maps import RunAttention


def example(length: int) -> RunAttention:
    return RunAttention(
        setting="reverse",
        variant="QKV",
        seed=3,
        run_key="",
        maps=np.broadcast_to(np.eye(length)[::-1], (2, 3, length, length)),
        tokens=tuple("abcdefghijklmnopqrstuvwxyzabcdef"[:length]),
        targets=tuple(range(length - 1, -1, -1)),
    )


@pytest.mark.parametrize(("length", "outlined"), [(5, 6), (25, 0)])
def test_every_head_has_a_map_with_the_right_cells_outlined(length: int, outlined: int) -> None:
    drawn = maps.drawing(example(length)).to_svg("map")
    assert drawn.count("<image") == drawn.count("map-frame") == 6
    assert drawn.count('class="right-cell"') == outlined


def test_more_attention_is_darker_and_nan_is_none() -> None:
    weights = np.array([[0.0, 0.01, 1.0], [np.nan, 0.25, 2.0]])
    image = Image.open(io.BytesIO(maps.png(maps.shades(weights)))).convert("L")
    grey = np.asarray(image).astype(int)
    assert (np.diff(grey) < 0).all()
    assert grey[0, 0] == grey[1, 0]
    assert grey[0, 2] == grey[1, 2]
