"""Workloads x peers x peakfold at given constraints, measured in one run a workload."""
