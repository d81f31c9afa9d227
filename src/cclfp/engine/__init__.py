"""Engines: plan the steps of replicas, train them in one of three ways, and test them."""
