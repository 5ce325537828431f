"""From scores to an answer: two rankings fused, a set that is diverse, a choice that explores."""
