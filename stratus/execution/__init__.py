"""Execution: claims runs with their sessions' leases, carries out turns step by step, and ends what others left behind."""
