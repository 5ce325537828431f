"""The benchmark of the scan, small: that it measures what it says."""

from benchmarks.scan import Bench, agreement, batches, single_query, small_bank


def test_every_side_is_timed_and_every_answer_compared():
    bench = Bench(rounds=1)
    figures = single_query(bench, 3000) | batches(bench, 500) | small_bank(bench)
    for name in ("float32", "float16", "bfloat16", "int8"):
        assert figures[f"single_{name}@3000_of_plain_read"].value > 0
        assert figures[f"single_{name}@3000_of_cached"].value > 0
    assert figures["single_float32@3000_of_plain_read"].target == 0.9
    assert figures["batch64_over_faiss@500"].target == 3.0
    assert figures["batch256_over_product@500"].target == 0.5


def test_the_answers_are_the_twins_from_every_storage_of_float32_vectors():
    figures = agreement(Bench(rounds=1), 600, 12)
    for name in ("float32", "bfloat16", "int8"):
        assert figures[f"{name}_answer_same_order"].value == 1.0
    assert 0.8 < figures["int8_kernel_overlap"].value < 1.0
