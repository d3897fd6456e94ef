"""Boosted trees as arrays: a forest saved by XGBoost answers here with numpy alone, equal to XGBoost's own answer.

A row's leaf is found without walking the tree (the bit-vector idea of Lucchese et al., QuickScorer, SIGIR 2015). Number a tree's leaves
from left to right. A node whose test fails sends the row to the right, so no leaf of its left branch can be the answer:

    test of node n fails  ->  clear the bits of the leaves left of n         exit leaf = lowest bit that is left

All tests of one feature in all trees depend on one number alone: between which two thresholds the row's value lies. So every feature has
one table from that place to the bits that survive, and a row costs one look-up per feature instead of one step per tree and level.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pie_p.errors import PredictorError

WORD: Final = 64  # bits of one word; a tree of L leaves takes ceil(L / 64) words
ROWS_AT_ONCE: Final = 2048  # keeps the bits of all trees in the cache
MOST_LEAVES: Final = 1024
ALL: Final = np.uint64(0xFFFF_FFFF_FFFF_FFFF)


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """Trees that add up: `base + sum of one leaf per tree`.

    Attributes:
        base: what a forest of no trees answers [target's unit].
        features: inputs per row [-].
        leaf_values: (trees, leaves), unused places 0.
        thresholds: per feature, ascending float32.
        survivors: per feature, (places, trees, words): bits of the leaves that can still be the answer; the last place is a missing value.
    """

    base: float
    features: int
    leaf_values: NDArray[np.float32]
    thresholds: tuple[NDArray[np.float32], ...]
    survivors: tuple[NDArray[np.uint64], ...]

    @property
    def trees(self) -> int:
        """Number of trees [-]."""
        return len(self.leaf_values)

    def predict(self, inputs: NDArray[Any]) -> NDArray[np.float64]:
        """One value per row; NaN stands for a missing input.

        Args:
            inputs: (rows, features).
        """
        if inputs.ndim != 2 or inputs.shape[1] != self.features:
            raise PredictorError(f"inputs of shape {inputs.shape} do not fit a forest of {self.features} features")
        values = np.ascontiguousarray(inputs.T, dtype=np.float32)
        answer = np.empty(values.shape[1], dtype=np.float64)
        for start in range(0, len(answer), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            answer[rows] = self._some(values[:, rows])
        return answer

    def _some(self, values: NDArray[np.float32]) -> NDArray[np.float64]:
        rows = values.shape[1]
        alive = self._alive(values)
        leaf = lowest_bit(alive)
        terms = np.empty((rows, self.trees + 1), dtype=np.float32)
        terms[:, 0] = self.base
        terms[:, 1:] = self.leaf_values.ravel()[leaf + np.arange(self.trees) * self.leaf_values.shape[1]]
        return np.add.accumulate(terms, axis=1)[:, -1].astype(np.float64)  # in XGBoost's order and precision: the same number

    def _alive(self, values: NDArray[np.float32]) -> NDArray[np.uint64]:
        """(rows, trees, words): bits of the leaves that no test rules out. A feature in which all rows agree is looked up once."""
        missing = np.isnan(values)
        gaps: NDArray[np.bool_] = np.any(missing, axis=1)
        agree: NDArray[np.bool_] = np.all((values == values[:, :1]) | (missing & missing[:, :1]), axis=1)
        common = np.full((self.trees, self.leaf_values.shape[1] // WORD), ALL)
        apart: list[NDArray[np.uint64]] = []
        for number, (thresholds, survivors) in enumerate(zip(self.thresholds, self.survivors, strict=True)):
            if not len(thresholds):
                continue
            if agree[number]:
                common &= survivors[-1 if gaps[number] else thresholds.searchsorted(values[number, 0], side="right")]
                continue
            place = thresholds.searchsorted(values[number], side="right")
            if gaps[number]:
                place[missing[number]] = len(thresholds) + 1
            if apart:
                apart[0] &= survivors[place]
            else:
                apart.append(survivors[place])
        return apart[0] & common if apart else np.tile(common, (values.shape[1], 1, 1))


def lowest_bit(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Place of the lowest bit that is set, over the words of the last axis.

    >>> lowest_bit(np.array([[0, 4], [8, 1]], dtype=np.uint64)).tolist()
    [66, 3]
    """
    first = words[..., -1]
    offset = np.full(first.shape, (words.shape[-1] - 1) * WORD, dtype=np.int64)
    for word in range(words.shape[-1] - 2, -1, -1):
        here = words[..., word] != 0
        first, offset = np.where(here, words[..., word], first), np.where(here, word * WORD, offset)
    low = first & (~first + np.uint64(1))
    return np.asarray(np.frexp(low.astype(np.float64))[1] + (offset - 1), dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class _Tree:
    """One tree, checked, its leaves numbered from left to right."""

    leaf_values: NDArray[np.float32]
    feature: NDArray[np.int64]  # of each inner node
    threshold: NDArray[np.float32]
    missing_left: NDArray[np.bool_]
    first: NDArray[np.int64]  # leaves of the left branch: first ...
    last: NDArray[np.int64]  # ... and one past the last


def forest_from_xgboost(saved: Mapping[str, Any], *, what: str = "booster") -> Forest:
    """A forest from the object in XGBoost's JSON model file.

    Args:
        saved: the parsed file; one target, numerical splits, squared-error-like objective (no link function).
        what: the file's name, for messages.

    Raises:
        PredictorError: not such a file, or one this reader does not understand.
    """
    try:
        learner = saved["learner"]
        features = int(learner["learner_model_param"]["num_feature"])
        base = float(str(learner["learner_model_param"]["base_score"]).strip("[]"))
        booster, objective = learner["gradient_booster"], learner["objective"]["name"]
        if booster["name"] != "gbtree" or objective not in ("reg:squarederror", "reg:absoluteerror", "reg:pseudohubererror"):
            raise PredictorError(
                f"{what} is a {booster['name']!r} for {objective!r}; only regression trees without a link function are read"
            )
        trees = [_tree(tree, features, f"{what}, tree {number}") for number, tree in enumerate(booster["model"]["trees"])]
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, AttributeError) as error:
        raise PredictorError(f"{what} is not a model file of XGBoost: {type(error).__name__}: {str(error)[:80]}") from None
    if not np.isfinite(base) or not 0 < features <= 1000:
        raise PredictorError(f"{what} has base_score {base} and {features} features; finite and 1 to 1000 are allowed")
    return _assemble(base, features, trees)


def _tree(saved: Mapping[str, Any], features: int, what: str) -> _Tree:
    left, right = np.array(saved["left_children"], dtype=np.int64), np.array(saved["right_children"], dtype=np.int64)
    feature, value = np.array(saved["split_indices"], dtype=np.int64), np.array(saved["split_conditions"], dtype=np.float32)
    missing_left = np.array(saved["default_left"], dtype=np.int64) > 0
    nodes = len(left)
    inner = left >= 0
    if np.any(np.array(saved["split_type"])) or int(saved["tree_param"].get("size_leaf_vector", 1)) > 1:
        raise PredictorError(f"{what} has categorical splits or several targets; only numerical splits of one target are read")
    if not nodes or any(len(column) != nodes for column in (right, feature, value, missing_left)) or not np.isfinite(value).all():
        raise PredictorError(f"{what} is torn: its columns differ in length or hold no finite numbers")
    children = np.concatenate([left[inner], right[inner]])
    once = len(np.unique(children)) == len(children) == nodes - 1
    below = np.all(children > np.tile(np.flatnonzero(inner), 2)) and np.all(children < nodes)
    if not (once and below and np.all(right[inner] >= 0) and np.all((feature[inner] >= 0) & (feature[inner] < features))):
        raise PredictorError(f"{what} is no tree: a node with two parents, a loop, or a feature that is not there")
    first, count = _leaf_ranges(left, right)
    if count[0] > MOST_LEAVES:
        raise PredictorError(f"{what} has {count[0]} leaves; at most {MOST_LEAVES} are read")
    leaf_values = np.zeros(count[0], dtype=np.float32)
    leaf_values[first[~inner]] = value[~inner]
    return _Tree(leaf_values, feature[inner], value[inner], missing_left[inner], first[inner], first[inner] + count[left[inner]])


def _leaf_ranges(left: NDArray[np.int64], right: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For every node, its first leaf from the left and how many leaves it has. Children have higher numbers than their parents."""
    count, first = np.ones(len(left), dtype=np.int64), np.zeros(len(left), dtype=np.int64)
    inner = np.flatnonzero(left >= 0)
    for node in inner[::-1]:
        count[node] = count[left[node]] + count[right[node]]
    for node in inner:
        first[left[node]] = first[node]
        first[right[node]] = first[node] + count[left[node]]
    return first, count


def _assemble(base: float, features: int, trees: Sequence[_Tree]) -> Forest:
    words = max(1, -(-max((len(tree.leaf_values) for tree in trees), default=1) // WORD))
    leaf_values = np.zeros((len(trees), words * WORD), dtype=np.float32)
    for number, tree in enumerate(trees):
        leaf_values[number, : len(tree.leaf_values)] = tree.leaf_values
    owner = np.concatenate([np.full(len(tree.feature), number) for number, tree in enumerate(trees)] or [np.zeros(0, dtype=np.int64)])
    parts = {name: np.concatenate([getattr(tree, name) for tree in trees] or [np.zeros(0)]) for name in _Tree.__slots__[1:]}
    cleared = _cleared_bits(parts["first"], parts["last"], words)
    thresholds, survivors = [], []
    for feature in range(features):
        mine = parts["feature"] == feature
        steps, rank = np.unique(parts["threshold"][mine].astype(np.float32), return_inverse=True)
        table = np.full((len(steps) + 2, len(trees), words), ALL)
        np.bitwise_and.at(table, (rank + 1, owner[mine]), ~cleared[mine])
        np.bitwise_and.accumulate(table[:-1], axis=0, out=table[:-1])
        lost = mine & ~parts["missing_left"].astype(bool)  # a missing value fails these tests
        np.bitwise_and.at(table[-1], owner[lost], ~cleared[lost])
        thresholds.append(steps)
        survivors.append(table)
    return Forest(base, features, leaf_values, tuple(thresholds), tuple(survivors))


def _cleared_bits(first: NDArray[Any], last: NDArray[Any], words: int) -> NDArray[np.uint64]:
    """(nodes, words): bits first..last-1 set."""
    offset = np.arange(words) * WORD
    low = np.clip(first[:, None] - offset, 0, WORD).astype(np.uint64)
    high = np.clip(last[:, None] - offset, 0, WORD).astype(np.uint64)
    return _below(high) & ~_below(low)


def _below(place: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Words with all bits below a place set; a shift by a whole word is not defined, so 64 is apart."""
    full = place >= WORD
    shifted = (np.uint64(1) << np.where(full, np.uint64(0), place)) - np.uint64(1)
    return np.asarray(np.where(full, ALL, shifted), dtype=np.uint64)
