"""Engines: what runs replicas over their plans."""
