from qkvary.arch.caches import CacheOptions
from qkvary.inference.decoding import complete
from qkvary.inference.requests import Request
from tests.inference.decoding_networks import VOCABULARY, make_network
from timing.answers import (
    TimedAnswer,
    answer_with_cache,
    answer_without_cache,
    count_equal,
    draw_prompts,
)

NEW = 13
PREALLOCATED = CacheOptions(storage="preallocated")


def check_times(answer: TimedAnswer) -> None:
    for first, whole in zip(answer.first, answer.whole, strict=True):
        assert 0 <= first <= whole
    assert answer.whole.wall > answer.first.wall > 0


def test_prompts_are_drawn_anew_for_every_row_and_alike_for_a_seed() -> None:
    one = draw_prompts(VOCABULARY, batch=3, length=11, seed=1)
    assert one == draw_prompts(VOCABULARY, batch=3, length=11, seed=1)
    assert one != draw_prompts(VOCABULARY, batch=3, length=11, seed=2)
    assert [len(row) for row in one] == [11] * 3
    assert len(set(one)) == 3
    assert all(0 <= token < VOCABULARY for row in one for token in row)


def test_answers_and_cache_sizes_equal_those_of_decoding() -> None:
    model = make_network("Q-K=V")
    prompts = draw_prompts(VOCABULARY, batch=2, length=7, seed=0)
    answer = answer_with_cache(model, prompts, NEW, options=PREALLOCATED)
    requests = [Request(prompt=prompt, max_new_tokens=NEW) for prompt in prompts]
    assert answer.tokens == tuple(tuple(one.tokens) for one in complete(model, requests))
    # K alone of 2 rows, 3 layers, 20 channels, for all tokens but the last.
    assert answer.cache_bytes == 2 * 3 * 20 * 4 * (7 + NEW - 1)
    check_times(answer)


def test_running_the_prefix_again_gives_the_same_tokens() -> None:
    model = make_network("Q-MQA")
    prompts = draw_prompts(VOCABULARY, batch=2, length=5, seed=0)
    ours = answer_with_cache(model, prompts, NEW, options=PREALLOCATED)
    again = answer_without_cache(model, prompts, ours.tokens, range(NEW))
    assert again.tokens == ours.tokens
    assert again.cache_bytes == 0
    check_times(again)


def test_equal_tokens_are_counted_up_to_the_first_difference_of_any_row() -> None:
    assert count_equal(((1, 2, 3), (4, 5, 6)), ((1, 2, 3), (4, 5, 6))) == 3
    assert count_equal(((1, 2, 3), (4, 5, 6)), ((1, 2, 9), (4, 0, 6))) == 1
    assert count_equal(((1,),), ((2,),)) == 0
