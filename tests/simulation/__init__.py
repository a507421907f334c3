"""The real scheduler, keeper and tasks under a clock that is moved: one thread, one seed, one outcome."""
