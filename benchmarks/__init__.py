"""Speed and memory measurements, some of them against peers. They measure; they are not tests."""
