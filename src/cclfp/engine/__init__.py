"""Engines: plan the steps of replicas, train them, and test them."""
