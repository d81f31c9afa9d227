"""Class orders of any kind: a valid split or an InputError."""

from __future__ import annotations

import collections
import functools
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cclfp.core.arguments import split_names, unquote
from cclfp.errors import InputError
from cclfp.streams import get_benchmark

MNIST = get_benchmark("split-mnist")
LOOP: list[Any] = [0, 1]
LOOP.append(LOOP)

NUMBERS = st.integers() | st.integers(0, 9)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats() | st.text(max_size=3) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=10) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=12,
)
PERMUTED = st.permutations(list(range(10)))
TEXT = st.lists(st.sampled_from([*"0123456789,/ ", "random", "10", "-1", "٣", "\0", "\udc80"])).map("".join)
ORDERS = (
    VALUES
    | TEXT
    | st.text()
    | PERMUTED
    | PERMUTED.map(np.array)
    | PERMUTED.map(torch.tensor)
    | PERMUTED.map(lambda order: ",".join(map(str, order)).replace(",5", "/5"))
    | PERMUTED.map(lambda order: [order[:3], order[3:]])
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.none() | st.integers(-2, 12), ORDERS)
@example(None, LOOP)
@example(None, torch.tensor(3))
@example(None, np.array(3))
@example(None, [torch.tensor([1, 2]), torch.tensor(3)])
@example(None, [np.array([[0, 1]]), np.zeros((2, 2))])
@example(None, range(10**12))
@example(None, [range(10**12)])
@example(None, itertools.count())
@example(None, b"\0\1\2\3\4\5\6\7\x08\x09")
@example(None, "0" * 1_000_000)
def test_any_class_order_is_a_split_or_refused(tasks: int | None, order: Any) -> None:
    try:
        ids, sizes = MNIST.split_into(tasks, order)
    except InputError as error:
        message = str(error)
    else:
        message = ""
        assert ids in (None, "random") or sorted(ids) == list(range(10))
        assert sizes is None or (sum(sizes) == 10 and min(sizes) > 0)
        split = MNIST.task_classes(ids, sizes, seed=0)
        assert sorted(itertools.chain(*split)) == list(range(10))
        assert tasks in (None, len(split))
    assert len(message) < 3000
    assert message.isprintable()


IDS = (6, 0, 8, 9, 2, 3, 4, 5, 7, 1)
FROG = "frog,airplane,ship,truck,bird,cat,deer,dog,horse,automobile"


@pytest.mark.parametrize(
    ("tasks", "order", "expected"),
    [
        *((None, kind(IDS), (IDS, None)) for kind in (list, np.array, torch.tensor, collections.deque)),
        (None, [np.int64(c) if c % 2 else torch.tensor(c) for c in IDS], (IDS, None)),
        (None, range(9, -1, -1), (tuple(range(9, -1, -1)), None)),
        (None, np.array(IDS).reshape(2, 5), (IDS, (5, 5))),
        (None, FROG, (IDS, None)),
        (None, ",".join(map(str, IDS)), (IDS, None)),
        (2, FROG, (IDS, (5, 5))),
        (3, None, (None, (4, 3, 3))),
        (5, None, (None, None)),  # as usual
        (None, FROG.replace(",ship", "/ship").replace(",cat", "/cat"), (IDS, (2, 3, 5))),
        (None, [["frog", 0], [*IDS[2:]]], (IDS, (2, 8))),
        (None, "0,1/2,3/4,5/6,7/8,9", (None, None)),  # as usual
        (None, "labels", (None, None)),
        (None, None, (None, None)),
        (None, "random", ("random", None)),
    ],
)
def test_class_orders_that_are_taken(tasks: int | None, order: Any, expected: Any) -> None:
    assert get_benchmark("split-cifar10").split_into(tasks, order) == expected


@pytest.mark.parametrize(
    ("tasks", "order", "message"),
    [
        (None, "wnids", "'labels', or each of the .*'wnids' is wrong or given twice"),
        (None, "8,frag", "'frag' is wrong or given twice, not given: 0, 1"),
        (None, "0,0,1", "^class order '0,0,1': expected 'random'.*'0' is wrong or given twice, not given: 2, 3"),
        (None, (0, 1, 2), "by name or by number .not given: 3, 4"),
        (None, "0,1/", "'' is wrong or given twice"),
        (None, (0,) * 10, "expected 'random', 'labels', or each of the 10 classes once"),
        (None, (0.5,) * 10, "0.5 is wrong or given twice"),
        (None, [[*range(10)], []], r"[^[]\[\] is wrong or given twice"),
        (None, np.zeros((2, 2), int), r"^class order \[\[0, 0\], \[0, 0\]\]: expected"),
        (None, [], r"^class order \[\]: expected 'random', 'labels', or each of the 10 classes once"),
        *((None, kind(range(10)), "is wrong or given twice, not given: 0") for kind in (set, dict.fromkeys, iter)),
        (None, functools.reduce(lambda x, _: [x], range(100_000), list[Any]()), "is wrong or given twice, not"),
        (3, "0,1/2,3,4,5,6,7,8,9", "tasks=3, but the class order has 2 tasks"),
        (11, None, "tasks=11: expected a whole number from 1 to 10"),
        (0, None, "tasks=0: expected a whole number from 1 to 10"),
    ],
)
def test_class_orders_that_are_refused(tasks: int | None, order: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        MNIST.split_into(tasks, order)


NAMES = st.text(st.characters(exclude_categories=["C", "Z"]) | st.sampled_from(',/" '), min_size=1, max_size=6)


def quote(name: str) -> str:
    """As a user would: only where a name needs it."""
    needs_quotes = name != name.strip() or set(name) & set(',/"')
    return '"' + name.replace('"', '""') + '"' if needs_quotes else name


@given(st.lists(st.lists(NAMES, min_size=1, max_size=4), min_size=1, max_size=3))
def test_quoted_names_are_read_as_they_are(groups: list[list[str]]) -> None:
    text = "/".join(",".join(map(quote, group)) for group in groups)
    assert [[unquote(name) for name in split_names(group)] for group in split_names(text, "/")] == groups


def test_names_with_commas_and_slashes(monkeypatch: pytest.MonkeyPatch) -> None:
    classes = ("black, white", "cat", "km/h")
    monkeypatch.setattr(type(MNIST), "classes", property(lambda self: classes))
    assert MNIST.split_into(None, '"km/h","black, white"/cat') == ((2, 0, 1), (2, 1))
    with pytest.raises(InputError, match="a quotation mark has no partner"):
        MNIST.split_into(None, '"km/h,cat')


def test_a_class_order_with_a_name() -> None:
    """In the order of wnids.txt, tasks mix animals and things; the labels are sorted by WordNet id, like with like."""
    tiny = get_benchmark("split-tiny-imagenet")
    order, sizes = tiny.split_into(None, "wnids")
    assert (order, sizes) == tiny.split_into(None, None) == (tiny.usual_order, None)
    assert tiny.split_into(None, "labels") == tiny.split_into(None, range(200)) == (None, None)
    names = [tiny.classes[c] for c in itertools.chain(*tiny.task_classes(order, sizes, seed=0))]
    assert names[:4] == ["Egyptian cat", "reel", "volleyball", "rocking chair"]
    assert names[-2:] == ["cauliflower", "African elephant"]
    assert sorted(names) == sorted(tiny.classes)
    assert tiny.classes[:3] == ("goldfish", "European fire salamander", "bullfrog")
    assert tiny.split_into(5, "wnids") == (order, (40,) * 5)
    with pytest.raises(InputError, match="'labels', 'wnids', or each of the .*'wnid' is wrong or given twice"):
        tiny.split_into(None, "wnid")
