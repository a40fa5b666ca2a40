"""Ingress: platform events are stored before they are acknowledged, then routed in order to sessions as runs."""
