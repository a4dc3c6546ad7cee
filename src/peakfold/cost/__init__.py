"""Seconds and hidden workspace bytes of operators: a cache of measurements, and roofline devices."""
