"""The main job from end to end, on one small machine: `python -m harness.demo`."""
