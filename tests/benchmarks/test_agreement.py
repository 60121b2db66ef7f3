from __future__ import annotations

import numpy as np
import pytest
from vdali.benchmarks.agreement import agreement, cosine
from vdali.engine.spec import Precision, Task


def best(labels: list[list[int]], scores: list[list[float]]) -> dict[str, np.ndarray]:
    return {"top_labels": np.array(labels), "top_scores": np.array(scores, np.float32)}


def embeddings(*rows: list[float]) -> dict[str, np.ndarray]:
    return {"embedding": np.array(rows, np.float32)}


def test_length_does_not_matter_and_direction_does():
    values = cosine(np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]), np.array([[5.0, 0.0], [0.0, 1.0], [-2.0, 0.0]]))
    assert values == pytest.approx([1.0, 0.0, -1.0])


def test_rows_that_are_not_finite_agree_with_nothing():
    values = cosine(
        np.array([[np.nan, 1.0], [np.inf, 1.0], [0.0, 1.0]]), np.array([[1.0, 1.0], [1.0, 1.0], [np.inf, 1]])
    )
    assert values.tolist() == [0, 0, 0]


def test_a_zero_row_agrees_with_a_zero_row_alone():
    values = cosine(np.array([[0.0, 0.0], [0.0, 0.0]]), np.array([[0.0, 0.0], [0.0, 1.0]]))
    assert values.tolist() == [1, 0]


def test_the_worst_image_is_told():
    found = agreement(Task.EMBED, embeddings([1, 0], [1, 1], [0, 1]), embeddings([1, 0], [1, 0], [0, 1]))
    assert found is not None
    assert found.worst == 1
    assert found.lowest == pytest.approx(0.5**0.5)
    assert found.median == pytest.approx(1)
    assert found.is_wrong(Precision.FP32)


def test_an_int8_answer_may_differ_more_than_a_float_one():
    found = agreement(Task.EMBED, embeddings([1, 0.2]), embeddings([1, 0]))
    assert found is not None
    assert found.lowest == pytest.approx(0.98, abs=0.002)
    assert found.is_wrong(Precision.FP16)
    assert not found.is_wrong(Precision.INT8)


def test_outputs_of_another_shape_cannot_be_compared():
    assert agreement(Task.EMBED, embeddings([1, 0]), embeddings([1, 0], [0, 1])) is None
    assert agreement(Task.EMBED, embeddings([1, 0]), embeddings([1, 0, 0])) is None


def test_equal_best_classes_agree():
    found = agreement(Task.CLASSIFY, best([[3, 1]], [[0.6, 0.2]]), best([[3, 1]], [[0.6, 0.2]]))
    assert found is not None
    assert found.lowest == pytest.approx(1)


def test_classes_that_change_places_at_the_end_of_the_list_cost_little():
    found = agreement(Task.CLASSIFY, best([[3, 1, 7]], [[0.6, 0.2, 0.1]]), best([[3, 1, 8]], [[0.6, 0.2, 0.1]]))
    assert found is not None
    assert found.lowest == pytest.approx(1)


def test_another_best_class_is_wrong():
    found = agreement(Task.CLASSIFY, best([[3, 1]], [[0.9, 0.05]]), best([[1, 3]], [[0.9, 0.05]]))
    assert found is not None
    assert found.lowest < 0.2
