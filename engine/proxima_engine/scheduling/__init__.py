"""The parts of ProximaScheduler: queue, view, fail-open guard, report."""
